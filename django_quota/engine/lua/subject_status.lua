-- subject_status: what takes precedence over the limits of a subject: a ban. A module of decide.
--
-- KEYS   hit.status_key: a hash of the subject, its fields
--          b:<rule>       the last ban: "<until> <number in its series> <remembered until>"
--          e:<rule>       until when no more "refused" events are emitted
--          w:<rule>       "<until> <share> <capacity>" for each limit, with spaces between: the highest share of this
--                         capacity that was reported "near", and until when none repeats it
-- ARGV   as decide
-- reply  load: puts hit.status (BANNED or nil) and hit.stop (until when) on the hit. shut_out: makes a limit refuse

-- Refuses until a ban ends, and then for as long as the limit itself has no room.
local function shut_out(limit, stop)
  local function later(own) return own == NEVER and NEVER or math.max(stop - now, own) end
  limit.refused, limit.retry_after = true, later(limit.refused and limit.retry_after or 0)
  limit.more = later(limit.remaining > 0 and 0 or limit.more)
end

local function load(hit)
  local ban = redis.call('HGET', hit.status_key, 'b:' .. hit.rule)
  if not ban then return end
  local ends, level, remembered = string.match(ban, '^(%d+) (%d+) (%d+)$')
  ends, hit.level, hit.remembered = tonumber(ends), tonumber(level), tonumber(remembered)
  if ends > now then hit.status, hit.stop = BANNED, ends end
end

return { load = load, shut_out = shut_out }
