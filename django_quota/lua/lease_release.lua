-- lease_release: give a slot back, and leave the queue.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token
-- reply  {held, wake}: held 1: the token still held the slot; wake: the first of those who wait, who should ask again; ''
--        for nobody
local was_held = ends(leases_key, token) ~= nil
local was_there = redis.call('ZREM', leases_key, token) == 1
local had_place = leave()
if not was_there and not had_place then return { 0, '' } end
return { was_held and 1 or 0, waiter_at(0) or '' }
