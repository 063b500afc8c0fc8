-- counter_take: takes an amount from a total, or nothing.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now; [2] how much: a whole number from 1 to 2^63 - 1; [3] how long the rest lives from now, in
--        microseconds
-- reply  {DONE}; {TOO_FEW} if there is less
local total_key = KEYS[1]
local book, problem = read_book(1, 2)
if problem then return problem end
lower(book)
if not at_least(redis.call('GET', total_key) or '0', ARGV[2]) then
  put_lapsed_back(book)
  return { TOO_FEW }
end
redis.call('DECRBY', total_key, ARGV[2])
use_up(book.grants, tonumber(ARGV[2]))
expire(total_key, ARGV[3])
write(book, ARGV[3])
return { DONE }
