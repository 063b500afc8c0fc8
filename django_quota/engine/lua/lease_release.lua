-- lease_release: gives a slot back, and leaves the queue. If the next in the queue waits in the same process, it gets the slot
-- at once, and the reply tells that process. One of another process is woken, and asks.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token
-- reply  {held, next_holder, free, wait, reset}: times in microseconds
--        held 1: the token still held the slot, else 0; next_holder: the token that holds it now, '' for none
--        for the next_holder, free: slots that nobody holds; wait: until one more is free at the latest; reset: until all leases end
local was_held = ends(leases_key, token) and 1 or 0
local was_there = redis.call('ZREM', leases_key, token) == 1
if not leave(token) and not was_there then return { was_held, '', 0, 0, 0 } end
local next_holder, span = next_in_line()
if not next_holder or process_of(next_holder) ~= process_of(token) then
  wake_next()
  return { was_held, '', 0, 0, 0 }
end
hold(next_holder, span)
leave(next_holder)
wake_next()
local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
local limit = tonumber(next_holder:match('%.(%d+)%.%d+$'))
return { was_held, next_holder, math.max(0, limit - held), until_one_more(limit), until_all_end() }
