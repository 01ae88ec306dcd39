-- Returns the holds of many jobs and pools at once. Fails if Redis would refuse to write, as a replica or a full server
-- does; what only reads would see nothing of that.
-- KEYS: marker, a key of no cooldown, one of no pool. ARGV: prefix, jobs as a JSON array, pools as a JSON array.
-- Returns {'rebuilding'} or {'ok', JSON {server, cooldowns: {job: {decision_id, until}}, pools: {pool: {job: {slots,
-- until}}}}}.
local prefix = ARGV[1]
for i = 2, 3 do redis.call('SETRANGE', KEYS[i], 0, '') end
if not complete(KEYS[1]) then return refused(KEYS[1]) end
local seen = {cooldowns = {}, pools = {}, server = SERVER}
for _, job in ipairs(cjson.decode(ARGV[2])) do
  local cooldown = cooldown_at(prefix .. 'cooldown:' .. job .. TAG)
  if cooldown == false then return refused(KEYS[1]) end
  seen.cooldowns[job] = cooldown
end
for _, pool in ipairs(cjson.decode(ARGV[3])) do
  local key = prefix .. 'pool:' .. pool .. TAG
  if not pool_at(key, '', 0) then return refused(KEYS[1]) end
  local flat, entries = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do entries[flat[i]] = decoded(flat[i + 1]) end
  seen.pools[pool] = entries
end
return {'ok', cjson.encode(seen)}
