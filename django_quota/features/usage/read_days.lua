-- read_days: reads what was counted on some days.
--
-- KEYS   the days' counts: a hash each; fields as count_day and set_aside have them
-- ARGV   [1] now: not used
-- reply  for each key its fields and values, one after the other
local days = {}
for i, day_key in ipairs(KEYS) do days[i] = redis.call('HGETALL', day_key) end
return days
