-- counter_unique_count: reads how many distinct values were counted, to about 0.8 %.
--
-- KEYS   [1] the values: a HyperLogLog
-- ARGV   [1] now: not used
-- reply  {DONE, how many}
local values_key = KEYS[1]
local count = redis.pcall('PFCOUNT', values_key)
if failed(count) then return fault(count, 1) end
return { DONE, count }
