-- counter_transfer: moves an amount from one total to another, or nothing.
--
-- KEYS   [1] the total of the source; [2] the total of the destination; both may be the same
-- ARGV   [1] now; [2] how much: a whole number from 0 to 2^63 - 1; [3] how long both live from now, in microseconds
-- reply  {DONE}; {TOO_FEW} if the source has less
local from_key, to_key = KEYS[1], KEYS[2]
local total, problem = read_total(1)
if problem then return problem end
-- A key that is not a counter is reported even if nothing moves.
local _, other_problem = read_total(2)
if other_problem then return other_problem end
if not at_least(total, ARGV[2]) then return { TOO_FEW } end
if from_key == to_key then return { DONE } end
-- Add first: subtracting cannot fail, adding can.
local added = redis.pcall('INCRBY', to_key, ARGV[2])
if failed(added) then return fault(added, 2) end
redis.call('DECRBY', from_key, ARGV[2])
expire(from_key, ARGV[3])
expire(to_key, ARGV[3])
return { DONE }
