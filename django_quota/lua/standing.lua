-- standing: how a subject stands with a rule, whatever its limits say: exempt, blocked or banned. A part of decide.
--
-- KEYS   hit.standing_key: a hash of the subject, its fields
--          o:<rule>, o:*  an override of the rule, of all rules: "<mode> <from> <until> <rates>"; mode r: other rates, x: exempt,
--                         b: blocked; from, until: microseconds, 0 for none
--          b:<rule>       the last ban: "<until> <which in a row> <remembered until>"
--          d:<rule>       when the first hold that is not settled is due
--          e:<rule>, w:<rule>  until when nothing more is told of refusals, of being near the limit
-- ARGV   as decide
-- reply  stand: puts hit.standing (EXEMPT, BLOCKED, BANNED or nil) and hit.stop (its end, 0 for none) on the hit;
--        shut_out: makes a limit refuse

-- Returns the mode of an override that is in force now, its end, and the override itself.
local function in_force(override)
  if not override then return end
  local kind, from, stop = string.match(override, '^(%l) (%d+) (%d+)')
  stop = tonumber(stop)
  if tonumber(from) <= now and (stop == 0 or stop > now) then return kind, stop, override end
end

-- The later of two ends; 0 is none.
local function later_of(one, other) return one > 0 and other > 0 and math.max(one, other) or 0 end

-- Refuses until a ban or a block ends (0: it has no end), and then for as long as the limit itself has no room.
local function shut_out(limit, stop)
  local function later(own) return stop > 0 and own ~= NEVER and math.max(stop - now, own) or NEVER end
  limit.ok, limit.wait = false, later(limit.ok and 0 or limit.wait)
  limit.more = later(limit.remaining > 0 and 0 or limit.more)
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
  if hit.due and hit.due <= now and not hit.holds_key then
    stale[#stale + 1], stale[#stale + 2], stale[#stale + 3] = hit.index, HOLDS_DUE, ''
  end
  local banned_until = now
  if hit.tally_key and fields[4] then
    local ends, level, remembered = string.match(fields[4], '^(%d+) (%d+) (%d+)$')
    banned_until, hit.level, hit.remembered = tonumber(ends), tonumber(level), tonumber(remembered)
  end
  if kind == 'x' then
    hit.standing, hit.stop = EXEMPT, stop
  elseif kind == 'b' then
    -- Where it ends, a block of all rules or a ban may go on.
    local of_all, end_of_all = in_force(fields[2])
    hit.standing, hit.stop = BLOCKED, later_of(later_of(stop, of_all == 'b' and end_of_all or now), banned_until)
  elseif banned_until > now then
    hit.standing, hit.stop = BANNED, banned_until
  end
end
