-- counter_set: sets a total. None of its units expires.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now; [2] the value, a whole number of 64 bits; [3] how long it lives from now, in microseconds
-- reply  {DONE}
local total_key, grants_key = KEYS[1], KEYS[2]
local _, problem = read_grants(1, 2)
if problem then return problem end
redis.call('SET', total_key, ARGV[2], 'PX', lifetime(ARGV[3]))
redis.call('DEL', grants_key)
return { DONE }
