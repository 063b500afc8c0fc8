-- refusal: what a refused or banned hit changes: counts of refusals and of the day, events. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  a function; it replies nothing, and adds flags
return function(hit)
  local group_refused = refused[hit.group]
  -- A flood emits one event a second: its other refusals do not need the modules that emit.
  local emits_event = emits and not hit.quiet and hit.refused
    and tonumber(redis.call('HGET', hit.status_key, 'e:' .. hit.rule) or 0) <= now
  if emits_event and hit.warn ~= 0 and not hit.status then need('near')(hit, hit.cost, 'refused') end
  for _, limit in ipairs(hit.status and {} or hit) do
    if limit.counted and limit.capacity > 0 and group_refused then
      limit.algorithm.consume(limit)
      -- A limit that a refused hit has filled refuses the next hit, too: the reply says for how long.
      look(limit)
    elseif limit.algorithm.follow_clock then
      limit.algorithm.follow_clock(limit)
    end
  end
  if hit.day_key and hit.refused then count_day(hit.day_key, hit.rule, ':r', 1, hit.tier) end
  if hit.refused and (hit.refusals or emits_event) then need('events').emit_refused(hit, emits_event) end
end
