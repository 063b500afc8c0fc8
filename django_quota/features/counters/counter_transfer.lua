-- counter_transfer: moves an amount from one total to another, or nothing. Units that expire keep their time.
--
-- KEYS   [1] the total of the source; [2] the total of the destination; [3], [4] their units that expire; both may be
--        the same
-- ARGV   [1] now; [2] how much: a whole number from 0 to 2^63 - 1; [3] how long both live from now, in microseconds
-- reply  {DONE}; {TOO_FEW} if the source has less
local from_key, to_key = KEYS[1], KEYS[2]
local source, problem, total = read_grants(1, 3)
if problem then return problem end
-- A key that is not a counter is reported even if nothing moves.
local destination, other_problem = read_grants(2, 4)
if other_problem then return other_problem end
local tools = need_grants()
if source.expired > 0 then total = tools.lower(source) end
local is_enough = at_least(total or '0', ARGV[2])
local drawn = tools.use_up(source.live, tonumber(ARGV[2]))
local failure = not is_enough and { TOO_FEW } or from_key == to_key and { DONE }
  or not tools.make_room(destination, #drawn) and { TOO_MANY, 4 }
if not failure then
  -- Add first: subtracting cannot fail, adding can.
  local added = tools.credit(destination, ARGV[2], drawn)
  failure = added and fault(added, 2)
end
if failure then
  if source.expired > 0 then tools.put_expired_back(source) end
  return failure
end
redis.call('DECRBY', from_key, ARGV[2])
expire(from_key, ARGV[3])
expire(to_key, ARGV[3])
tools.write(source, ARGV[3])
tools.write(destination, ARGV[3])
return { DONE }
