-- counter_take: takes an amount from a total, or nothing.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now; [2] how much: a whole number from 1 to 2^63 - 1; [3] how long the rest lives from now, in
--        microseconds
-- reply  {DONE}; {TOO_FEW} if there is less
local total_key = KEYS[1]
local book, problem, total = read_book(1, 2)
if problem then return problem end
if book.lapsed > 0 then total = need_grants().lower(book) end
if not at_least(total or '0', ARGV[2]) then
  if book.lapsed > 0 then need_grants().put_lapsed_back(book) end
  return { TOO_FEW }
end
redis.call('DECRBY', total_key, ARGV[2])
expire(total_key, ARGV[3])
if book.had_any then need_grants().spend(book, tonumber(ARGV[2]), ARGV[3]) end
return { DONE }
