-- The beginning of every script. Times are epoch seconds given by the caller; a key's time to live only cleans up.
-- A key with a wrong type or content, or a marker of another server, means that the view cannot be trusted. The script
-- then deletes the marker, which refuses every change until the view has been rebuilt from the topics.

local REBUILDING = 'rebuilding'
local YEAR_10000 = 253402300800
local MOST_SLOTS = 1e9

local function decoded(raw)
  local fine, value = pcall(cjson.decode, raw)
  local whole = fine and type(value) == 'table' and type(value.decision_id) == 'string'
  return whole and type(value['until']) == 'number' and value['until'] < YEAR_10000 and value or nil
end

-- Which process of Redis answers; '' if it does not tell this user, who needs the right +info.
local told = redis.pcall('INFO', 'server')
local SERVER = type(told) == 'string' and told:match('run_id:(%w+)') or ''

-- How the names of all keys but the marker end: with the marker's name in braces where all have to be in one slot.
local TAG = KEYS[1]:match('{.*}$') or KEYS[2]:match('{.*}$') or ''

-- Returns whether the view was completed on this very server and under these names. Another server, after a failover or
-- a restart, may lack the newest writes, or those of an hour, and still have the marker.
local function complete(marker)
  local raw = redis.pcall('GET', marker)
  if type(raw) ~= 'string' then return false end
  local fine, value = pcall(cjson.decode, raw)
  if not fine or type(value) ~= 'table' then return false end
  return (SERVER == '' or value.server == SERVER) and (value.tag or '') == TAG
end

-- Returns the cooldown as a table, nil if there is none, or false if the key is damaged.
local function cooldown_at(key)
  local raw = redis.pcall('GET', key)
  if type(raw) == 'table' then return false end
  if not raw then return nil end
  return decoded(raw) or false
end

-- Returns true, the job's own entry (or nil) and the slots of all other jobs; or false if the key is damaged.
local function pool_at(key, job, now)
  local flat = redis.pcall('HGETALL', key)
  if flat.err then return false end
  local own, others = nil, 0
  for i = 1, #flat, 2 do
    local entry = decoded(flat[i + 1])
    local slots = entry and entry.slots
    if type(slots) ~= 'number' or not (slots >= 0 and slots < MOST_SLOTS) or slots % 1 > 0 then return false end
    if flat[i] == job then
      own = entry
    elseif entry['until'] > now then
      others = others + entry.slots
    end
  end
  return true, own, others
end

local function refused(marker)
  redis.call('DEL', marker)
  return {REBUILDING}
end
