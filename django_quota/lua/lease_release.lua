-- lease_release: give a slot back, and leave the queue. Where the next in line waits in the same process, it has the slot
-- at once: the reply tells that process. One of another process is woken, and asks.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token
-- reply  {held, heir, free, wait, reset}: times in microseconds
--        held 1: the token still held the slot, else 0; heir: the token that holds it now, '' for none
--        for the heir, free: slots that nobody holds; wait: until one more is free at the latest; reset: until all leases end
local was_held = ends(leases_key, token) and 1 or 0
local was_there = redis.call('ZREM', leases_key, token) == 1
if not leave(token) and not was_there then return { was_held, '', 0, 0, 0 } end
local heir, span = next_in_line()
if not heir or process_of(heir) ~= process_of(token) then
  wake_next()
  return { was_held, '', 0, 0, 0 }
end
hold(heir, span)
leave(heir)
wake_next()
local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
local limit = tonumber(heir:match('%.(%d+)%.%d+$'))
return { was_held, heir, math.max(0, limit - held), until_one_more(limit), until_all_end() }
