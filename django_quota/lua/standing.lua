-- standing: how a subject stands with a rule, whatever its limits say: exempt, blocked or banned. A part of decide.
--
-- KEYS   hit.standing_key: a hash of the subject, its fields
--          o:<rule>, o:*  an override of the rule, of all rules: "<mode> <from> <until> <rates>"; mode r: other rates, x: exempt,
--                         b: blocked; from, until: microseconds, 0 for none
--          b:<rule>       the last ban: "<until> <which in a row> <remembered until>"
--          d:<rule>       when the first hold that is not settled is due
--          e:<rule>, w:<rule>  until when nothing more is told of refusals, of being near the limit
-- ARGV   as decide
-- reply  stand: puts hit.standing (EXEMPT, BLOCKED, BANNED or nil) and hit.stop (its end, 0 for none) on the hit

-- Returns the mode of an override that is in force now, its end, and the override itself.
local function in_force(override)
  if not override then return end
  local kind, from, stop = string.match(override, '^(%l) (%d+) (%d+)')
  stop = tonumber(stop)
  if tonumber(from) <= now and (stop == 0 or stop > now) then return kind, stop, override end
end

local function stand(hit, stale)
  local rule = hit.rule
  -- A rule without bans does not look for one.
  local last = hit.tally_key and 'b:' .. rule or 'd:' .. rule
  local fields = redis.call('HMGET', hit.standing_key, 'o:' .. rule, 'o:*', 'd:' .. rule, last)
  local kind, stop, override = in_force(fields[1])
  if not kind then kind, stop, override = in_force(fields[2]) end
  local rates = kind == 'r' and override or ''
  if rates ~= hit.override then
    stale[#stale + 1], stale[#stale + 2], stale[#stale + 3] = hit.index, OVERRIDDEN, rates
  end
  hit.due = tonumber(fields[3] or nil)
  local lacks = hit.holds_key and mode ~= 'peek' and lacking(hit) or ''
  if lacks ~= '' or (hit.due and hit.due <= now and not hit.holds_key) then
    stale[#stale + 1], stale[#stale + 2], stale[#stale + 3] = hit.index, HOLDS_DUE, lacks
  end
  if kind == 'x' then
    hit.standing, hit.stop = EXEMPT, stop
  elseif kind == 'b' then
    hit.standing, hit.stop = BLOCKED, stop
  elseif hit.tally_key and fields[4] then
    local ends, level, remembered = string.match(fields[4], '^(%d+) (%d+) (%d+)$')
    hit.level, hit.remembered = tonumber(level), tonumber(remembered)
    if tonumber(ends) > now then hit.standing, hit.stop = BANNED, tonumber(ends) end
  end
end
