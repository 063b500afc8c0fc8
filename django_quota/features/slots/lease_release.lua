-- lease_release: gives a slot back, and notes how long it was held.
--
-- KEYS   [1] the leases; [2] how long the slot was recently held
-- ARGV   [1] now; [2] the token; [3] when it got the slot, '' if that is not known; [4] how long a lease lasts, in
--        microseconds: [2] is kept as long
-- reply  1: the token still held the slot, else 0
local lately_key = KEYS[2]
local was_held = is_held()
redis.call('ZREM', leases_key, token)
if not was_held then return 0 end
local lately = tonumber(redis.call('GET', lately_key))
local since = tonumber(ARGV[3])
if lately and since then
  local took = math.max(1, now - since)
  if lately > 0 then took = math.floor((7 * lately + took) / 8) end
  redis.call('SET', lately_key, integer(took), 'PX', lifetime(tonumber(ARGV[4])))
end
return 1
