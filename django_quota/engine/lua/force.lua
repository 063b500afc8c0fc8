-- force: counts hits whether or not there is room, and under a ban, too; their limits say whether there was room. A
-- module of decide.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  a function; it replies nothing, and adds flags

local function force_limit(hit, limit)
  local had_room = not limit.refused
  limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.consume(limit, true)
  if not had_room then look(limit) end
  if hit.status then need('subject_status').shut_out(limit, hit.stop) end
end

return function(hits)
  for _, hit in ipairs(hits) do
    if hit.cost > 0 then
      for _, limit in ipairs(hit) do
        if limit.capacity > 0 then force_limit(hit, limit) end
      end
      if hit.day_key then count_day(hit.day_key, hit.rule, ':a', hit.cost, hit.tier) end
      if emits and hit.warn > 0 and not hit.status then need('near')(hit, hit.cost) end
    end
  end
end
