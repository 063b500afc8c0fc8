-- counter_pop: reads a total and sets it to zero.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now
-- reply  as for counter_get, as it was
local total_key, grants_key = KEYS[1], KEYS[2]
local grants, problem, value = read_grants(1, 2)
if problem then return problem end
redis.call('DEL', total_key)
redis.call('DEL', grants_key)
return { DONE, value or '0', grants.expired }
