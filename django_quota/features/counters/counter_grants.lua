-- counter_grants: reads what is left of grants.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now
-- reply  {DONE, then each grant of which something is left, as a member of [2]; the first to expire first}
local book, problem = read_book(1, 2)
if problem then return problem end
local reply = { DONE }
for _, grant in ipairs(book.grants) do
  if grant.left > 0 then reply[#reply + 1] = member_of(grant) end
end
return reply
