-- count_day: counts a hit for its subject and day. A module of decide.
--
-- KEYS   hit.day_key: a hash of the subject and day; fields <rule>:a (allowed), <rule>:r (refused), '#' (when it was opened:
--          tells it from one that was lost)
-- ARGV   as decide
-- reply  a function; it replies nothing
local DAY_TTL = 8 * DAY -- so long the counts of a day wait for the roll-up

return function(hit)
  if redis.call('HINCRBY', hit.day_key, hit.rule .. (hit.refused and ':r' or ':a'), '1') == 1 then
    if redis.call('HSETNX', hit.day_key, '#', integer(now)) == 1 then expire(hit.day_key, DAY_TTL) end
  end
end
