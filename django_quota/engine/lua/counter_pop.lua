-- counter_pop: reads a total and sets it to zero.
--
-- KEYS   [1] the total
-- ARGV   [1] now: not used
-- reply  {DONE, the total as a text, as it was}
local total, problem = read_total(1)
if problem then return problem end
redis.call('DEL', KEYS[1])
return { DONE, total }
