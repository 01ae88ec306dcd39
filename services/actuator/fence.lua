-- Compare-and-set of a job's fence. KEYS[1] the fence; ARGV: epoch, run, owner, seconds to live.
-- Returns 1 when the fence is now {epoch, run, owner}; 0 when a newer run, or the same run of another owner, holds.
-- A key that is not a fence (wrong type, garbage) counts as absent and is replaced: the ledger is checked before this.
local kind = redis.call('TYPE', KEYS[1])['ok']
local epoch, run, owner
if kind == 'hash' then
  local held = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'owner')
  epoch, run, owner = tonumber(held[1]), tonumber(held[2]), held[3]
end
if epoch and run then
  local new_epoch, new_run = tonumber(ARGV[1]), tonumber(ARGV[2])
  if epoch > new_epoch or (epoch == new_epoch and run > new_run) then return 0 end
  if epoch == new_epoch and run == new_run and owner ~= ARGV[3] then return 0 end
elseif kind ~= 'none' then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'run', ARGV[2], 'owner', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
