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
  if hit.day_key and (hit.refused or (passed and mode ~= 'tentative')) then need('count_day')(hit) end
  if hit.refused then need('events').emit_refused(hit) end
end
