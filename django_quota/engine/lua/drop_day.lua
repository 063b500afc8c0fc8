-- drop_day: drops a day's counts if nothing was counted since they were read.
--
-- KEYS   [1] the day's counts: a hash; fields as events.lua has them
-- ARGV   [1] now: not used
--        then two for each field: its name and its value
-- reply  1 if it was dropped, else 0
local day_key = KEYS[1]
if redis.call('HLEN', day_key) ~= (#ARGV - 1) / 2 then return 0 end
for i = 2, #ARGV, 2 do
  if redis.call('HGET', day_key, ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
return redis.call('DEL', day_key)
