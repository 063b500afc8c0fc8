-- subject_status: what goes before the limits of a subject: exempt, blocked or banned. A module of decide.
--
-- KEYS   hit.status_key: a hash of the subject, its fields
--          o:<rule>, o:*  an override of the rule, of all rules: "<mode> <from> <until> <rates>"; mode r: other rates, x: exempt,
--                         b: blocked; from, until: microseconds, 0 for none
--          b:<rule>       the last ban: "<until> <which in a row> <remembered until>"
--          d:<rule>       when the first open hold is due
--          e:<rule>, w:<rule>  until when no more "refused", "near" events are emitted
-- ARGV   as decide
-- reply  load: puts hit.status (EXEMPT, BLOCKED, BANNED or nil) and hit.stop (its end, 0 for never) on the hit, and hit.quiet_until
--        (until when no more "refused" events are emitted); why the hit must be sent in another form goes into `retry`. shut_out: makes a limit refuse

-- Returns the mode of an override that is in force now, its end, and the override itself.
local function in_force(override)
  if not override then return end
  local kind, from, stop = string.match(override, '^(%l) (%d+) (%d+)')
  stop = tonumber(stop)
  if tonumber(from) <= now and (stop == 0 or stop > now) then return kind, stop, override end
end

-- The later of two ends; 0 is none.
local function later_of(one, other) return one > 0 and other > 0 and math.max(one, other) or 0 end

-- Refuses until a ban or a block ends (0: never), and then for as long as the limit itself has no room.
local function shut_out(limit, stop)
  local function later(own) return stop > 0 and own ~= NEVER and math.max(stop - now, own) or NEVER end
  limit.refused, limit.retry_after = true, later(limit.refused and limit.retry_after or 0)
  limit.more = later(limit.remaining > 0 and 0 or limit.more)
end

local function load(hit, retry)
  local rule = hit.rule
  local fields = redis.call('HMGET', hit.status_key, 'o:' .. rule, 'o:*', 'd:' .. rule, 'e:' .. rule, 'b:' .. rule)
  local kind, stop, override = in_force(fields[1])
  if not kind then kind, stop, override = in_force(fields[2]) end
  local rates = kind == 'r' and override or ''
  if rates ~= hit.override then
    retry[#retry + 1], retry[#retry + 2], retry[#retry + 3] = hit.index, OVERRIDDEN, rates
  end
  hit.due, hit.quiet_until = tonumber(fields[3] or nil), tonumber(fields[4] or nil)
  local missing = hit.holds_key and mode ~= 'peek' and need('holds').missing_limits(hit) or ''
  if missing ~= '' or (hit.due and hit.due <= now and not hit.holds_key) then
    retry[#retry + 1], retry[#retry + 2], retry[#retry + 3] = hit.index, HOLDS_DUE, missing
  end
  local banned_until = now
  if fields[5] then
    local ends, level, remembered = string.match(fields[5], '^(%d+) (%d+) (%d+)$')
    banned_until, hit.level, hit.remembered = tonumber(ends), tonumber(level), tonumber(remembered)
  end
  if kind == 'x' then
    hit.status, hit.stop = EXEMPT, stop
  elseif kind == 'b' then
    -- A block of all rules, or a ban, may last longer than the block of this rule.
    local of_all, end_of_all = in_force(fields[2])
    hit.status, hit.stop = BLOCKED, later_of(later_of(stop, of_all == 'b' and end_of_all or now), banned_until)
  elseif banned_until > now then
    hit.status, hit.stop = BANNED, banned_until
  end
end

return { load = load, shut_out = shut_out }
