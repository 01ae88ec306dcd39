-- Returns what a job holds, and what others hold in its pool.
-- KEYS: cooldown, pool, marker. ARGV: now, job.
-- Returns {'rebuilding'} or {'ok', decision that owns the cooldown or '', until, slots held by others}.
local now = tonumber(ARGV[1])
if not complete(KEYS[3]) then return refused(KEYS[3]) end
local cooldown = cooldown_at(KEYS[1])
local fine, _, others = pool_at(KEYS[2], ARGV[2], now)
if cooldown == false or not fine then return refused(KEYS[3]) end
if cooldown and cooldown['until'] > now then
  return {'ok', cooldown.decision_id, string.format('%.6f', cooldown['until']), others}
end
return {'ok', '', '', others}
