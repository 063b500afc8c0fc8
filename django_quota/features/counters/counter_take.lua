-- counter_take: takes an amount from a total, or nothing.
--
-- KEYS   [1] the total
-- ARGV   [1] now; [2] how much: a whole number from 1 to 2^63 - 1; [3] how long the rest lives from now, in
--        microseconds
-- reply  {DONE}; {TOO_FEW} if there is less
local total_key = KEYS[1]
local total, problem = read_total(1)
if problem then return problem end
if not at_least(total, ARGV[2]) then return { TOO_FEW } end
redis.call('DECRBY', total_key, ARGV[2])
expire(total_key, ARGV[3])
return { DONE }
