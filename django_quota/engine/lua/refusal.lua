-- refusal: what a hit leaves behind that is refused, or whose status goes before its limits. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  a function; it replies nothing, and adds flags
return function(hit)
  local group_refused = refused and refused[hit.group]
  for _, limit in ipairs(hit.status and {} or hit) do
    if limit.counted and limit.capacity > 0 and group_refused then
      limit.algorithm.consume(limit)
      -- What a refused hit has filled also refuses the next one: the reply says for how long.
      local allowed
      allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.peek(limit)
      limit.refused = not allowed
    elseif limit.algorithm.follow_clock then
      limit.algorithm.follow_clock(limit)
    end
  end
  local passed = not group_refused and not (refused and refused[0])
  if hit.day_key and (hit.refused or (passed and mode ~= 'tentative')) then
    count_day(hit.day_key, hit.rule .. (hit.refused and ':r' or ':a'))
  end
  -- A flood is refused again and again: it emits an event a second, and the other refusals do without that module.
  local emits_event = emits and not hit.quiet and (hit.quiet_until or 0) <= now
  if hit.refused and (hit.refusals or emits_event) then need('events').emit_refused(hit, emits_event) end
end
