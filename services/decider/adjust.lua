-- Changes the slots of a hold, or releases them, if the decision owns them. Also removes entries that have expired.
-- KEYS: pool, marker. ARGV: now, job, decision, slots (-1: release).
local now, job, decision, slots = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
if not complete(KEYS[2]) then return refused(KEYS[2]) end
local fine, own = pool_at(KEYS[1], job, now)
if not fine then return refused(KEYS[2]) end
if own and own.decision_id == decision then
  if slots < 0 then
    redis.call('HDEL', KEYS[1], job)
  else
    own.slots = slots
    redis.call('HSET', KEYS[1], job, cjson.encode(own))
  end
end
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  if decoded(flat[i + 1])['until'] <= now then redis.call('HDEL', KEYS[1], flat[i]) end
end
return {'ok'}
