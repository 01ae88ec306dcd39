-- Replaces the view of all jobs with what the topics say, and writes the marker last. If several deciders rebuild at
-- once, the first one counts, and no later reservation is overwritten.
-- KEYS: marker, a key of no cooldown, one of no pool, then the cooldowns and pools of all known jobs.
-- ARGV: now, prefix, holds as a JSON array.
-- Returns {'restored'} or {'already'}.
local now, prefix = tonumber(ARGV[1]), ARGV[2]
if complete(KEYS[1]) then return {'already'} end
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
for _, hold in ipairs(cjson.decode(ARGV[3])) do
  if hold.cooldown_until > now then
    local value = cjson.encode({decision_id = hold.decision_id, ['until'] = hold.cooldown_until})
    local left = math.ceil((hold.cooldown_until - now) * 1000)
    redis.call('SET', prefix .. 'cooldown:' .. hold.job_id .. TAG, value, 'PX', left)
  end
  if hold.slots_until > now then
    local value = cjson.encode({slots = hold.slots, decision_id = hold.decision_id, ['until'] = hold.slots_until})
    redis.call('HSET', prefix .. 'pool:' .. hold.pool_id .. TAG, hold.job_id, value)
  end
end
local tag = TAG ~= '' and TAG or nil
redis.call('SET', KEYS[1], cjson.encode({rebuilt_at = now, server = SERVER, tag = tag}))
return {'restored'}
