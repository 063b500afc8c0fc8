-- counter_set: sets a total.
--
-- KEYS   [1] the total
-- ARGV   [1] now; [2] the value, a whole number of 64 bits; [3] how long it lives from now, in microseconds
-- reply  {DONE}
local total_key = KEYS[1]
local _, problem = read_total(1)
if problem then return problem end
redis.call('SET', total_key, ARGV[2], 'PX', lifetime(ARGV[3]))
return { DONE }
