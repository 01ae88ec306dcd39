-- Compare-and-set of a job's fence. KEYS[1]: the fence. ARGV: epoch, run, owner, seconds to live.
-- Returns {1} if the fence is now {epoch, run, owner}. Returns {0, epoch, run} of the run that holds the fence, if that
-- run is newer, or the same and another owner's. A key that is not a fence (wrong type, garbage) is replaced. So is one
-- with numbers that no fence has: they would not even come back as they are, since an answer holds only integers.
local YEAR_10000, MOST_RUNS = 253402300800, 1e9
local kind = redis.call('TYPE', KEYS[1])['ok']
local epoch, run, owner
if kind == 'hash' then
  local held = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'owner')
  epoch, run, owner = tonumber(held[1]), tonumber(held[2]), held[3]
end
if epoch and run and epoch < YEAR_10000 and run < MOST_RUNS then
  local new_epoch, new_run = tonumber(ARGV[1]), tonumber(ARGV[2])
  local newer = epoch > new_epoch or (epoch == new_epoch and run > new_run)
  local other = epoch == new_epoch and run == new_run and owner ~= ARGV[3]
  if newer or other then return {0, epoch, run} end
elseif kind ~= 'none' then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'run', ARGV[2], 'owner', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {1}
