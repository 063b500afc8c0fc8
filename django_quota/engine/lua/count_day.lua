-- count_day: counts a hit for its subject and day. Part of decide, before plain_plan and the frame.
--
-- KEYS   day_key: a hash of the subject and day; fields <rule>:a (allowed), <rule>:r (refused), '#' (when it was opened: tells
--        it from one that was lost)
-- ARGV   none
-- reply  nothing
local DAY_TTL = 8 * DAY -- so long the counts of a day wait for the roll-up

local function count_day(day_key, field)
  if redis.call('HINCRBY', day_key, field, '1') == 1 then
    if redis.call('HSETNX', day_key, '#', integer(now)) == 1 then expire(day_key, DAY_TTL) end
  end
end
