-- Takes a hold completely or not at all. The same decision gets the same answer again.
-- KEYS: cooldown, pool, marker.
-- ARGV: now, hold as a JSON object, free slots of the pool (-1: unknown).
-- Returns {'taken' | 'cooldown' | 'pool' | 'rebuilding'}.
local now, hold, free = tonumber(ARGV[1]), cjson.decode(ARGV[2]), tonumber(ARGV[3])
local job, decision = hold.job_id, hold.decision_id
local cooldown_until, slots, slots_until = hold.cooldown_until, hold.slots, hold.slots_until
if not complete(KEYS[3]) then return refused(KEYS[3]) end
local cooldown = cooldown_at(KEYS[1])
local fine, own, others = pool_at(KEYS[2], job, now)
if cooldown == false or not fine then return refused(KEYS[3]) end

if cooldown_until > 0 and cooldown and cooldown['until'] > now and cooldown.decision_id ~= decision then
  return {'cooldown'}
end
local again = own and own.decision_id == decision
if slots > 0 and free >= 0 and not again and others + slots > free then return {'pool'} end

if cooldown_until > now then
  local value = cjson.encode({decision_id = decision, ['until'] = cooldown_until})
  redis.call('SET', KEYS[1], value, 'PX', math.ceil((cooldown_until - now) * 1000))
end
if slots_until > now and not again then
  redis.call('HSET', KEYS[2], job, cjson.encode({slots = slots, decision_id = decision, ['until'] = slots_until}))
end
return {'taken'}
