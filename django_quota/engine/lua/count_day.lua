-- count_day: counts a hit for its subject and day. Part of decide, before the frame.
--
-- KEYS   day_key: a hash of the subject and day; fields <rule>:a (allowed), <rule>:r (refused), <rule>:u (what the
--        allowed ones cost beyond one unit each: most cost one, and need no second field), <rule>:t (the tier of the
--        last check). A number may be negative: see adjust
-- ARGV   none
-- reply  nothing
local DAY_TTL = 8 * DAY -- how long the counts of a day wait for the roll-up

local function count_day(day_key, rule, kind, cost, tier)
  if redis.call('HINCRBY', day_key, rule .. kind, '1') == 1 and redis.call('PTTL', day_key) < 0 then
    expire(day_key, DAY_TTL)
  end
  if cost > 1 then redis.call('HINCRBY', day_key, rule .. ':u', integer(cost - 1)) end
  if tier ~= '' then redis.call('HSET', day_key, rule .. ':t', tier) end
end
