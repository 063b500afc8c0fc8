-- lease_release: give a slot back, and leave the queue.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token
-- reply  1 where the token still held the slot, else 0
local was_held = ends(leases_key, token) ~= nil
local was_there = redis.call('ZREM', leases_key, token) == 1
if leave() or was_there then wake_first() end
return was_held and 1 or 0
