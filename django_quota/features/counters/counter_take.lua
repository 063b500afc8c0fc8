-- counter_take: takes an amount from a total, or nothing.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now; [2] how much: a whole number from 1 to 2^63 - 1; [3] how long the rest lives from now, in
--        microseconds
-- reply  {DONE}; {TOO_FEW} if there is less
local total_key = KEYS[1]
local grants, problem, total = read_grants(1, 2)
if problem then return problem end
if grants.expired > 0 then total = need_grants().lower(grants) end
if not at_least(total or '0', ARGV[2]) then
  if grants.expired > 0 then need_grants().put_expired_back(grants) end
  return { TOO_FEW }
end
redis.call('DECRBY', total_key, ARGV[2])
expire(total_key, ARGV[3])
if grants.had_any then need_grants().spend(grants, tonumber(ARGV[2]), ARGV[3]) end
return { DONE }
