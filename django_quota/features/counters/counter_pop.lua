-- counter_pop: reads a total and sets it to zero.
--
-- KEYS   [1] the total
-- ARGV   [1] now: not used
-- reply  {DONE, the total as a string, as it was}
local total_key = KEYS[1]
local total, problem = read_total(1)
if problem then return problem end
redis.call('DEL', total_key)
return { DONE, total }
