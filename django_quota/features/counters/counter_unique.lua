-- counter_unique: counts a distinct value, in total and for the day.
--
-- KEYS   [1] all values; [2] the values of the day: HyperLogLogs
-- ARGV   [1] now; [2] the value; [3] how long both live from now, in microseconds
--        [4], [5] the edges of the day, in microseconds: [4] <= now < [5]
-- reply  {DONE, 1 if the total count has changed, else 0}; {WRONG_DAY, now} if now is in another day
local all_key, day_key = KEYS[1], KEYS[2]
local value, ttl = ARGV[2], ARGV[3]
if now < tonumber(ARGV[4]) or now >= tonumber(ARGV[5]) then return { WRONG_DAY, now } end

local before = redis.pcall('GET', all_key)
local changed = redis.pcall('PFADD', all_key, value)
if failed(changed) then return fault(changed, 1) end
local changed_today = redis.pcall('PFADD', day_key, value)
if failed(changed_today) then
  put_back(all_key, before)
  return fault(changed_today, 2)
end
expire(all_key, ttl)
expire(day_key, ttl)
return { DONE, changed }
