-- counter_incr: adds to a total and to the count of the day.
--
-- KEYS   [1] the total; [2] the days of the month; [3] the units of the total that expire
-- ARGV   [1] now; [2] how much: a whole number of 64 bits, negative too; [3] how long both live from now, in
--        microseconds
--        [4] the day's field; [5], [6] the edges of the day, in microseconds: [5] <= now < [6]
-- reply  {DONE, the total after it as a string}; {WRONG_DAY, now} if now is in another day
local total_key, month_key = KEYS[1], KEYS[2]
local amount, ttl, field = ARGV[2], ARGV[3], ARGV[4]
if now < tonumber(ARGV[5]) or now >= tonumber(ARGV[6]) then return { WRONG_DAY, now } end

local grants, problem, before = read_grants(1, 3)
if problem then return problem end
local changed = change(grants, amount)
if changed then return fault(changed, 1) end
local added = redis.pcall('HINCRBY', month_key, field, amount)
if failed(added) then
  put_back(total_key, before)
  return fault(added, 2)
end
expire(total_key, ttl)
expire(month_key, ttl)
if grants.had_any then need_grants().spend(grants, -tonumber(amount), ttl) end
return { DONE, redis.call('GET', total_key) }
