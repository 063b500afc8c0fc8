-- lease_release: gives a slot back, and notes how long it was held.
--
-- KEYS   [1] the leases; [2] how long holders have kept the slot recently
-- ARGV   [1] now; [2] the token; [3] when it got the slot, '' if that is not known; [4] how long a lease lasts,
--        and how long [2] is kept, in microseconds
-- reply  1: the token still held the slot, else 0
local recent_key = KEYS[2]
local was_held = is_held()
redis.call('ZREM', leases_key, token)
if not was_held then return 0 end
local recent = tonumber(redis.call('GET', recent_key))
local since = tonumber(ARGV[3])
if recent and since then
  local took = math.max(1, now - since)
  if recent > 0 then took = math.floor((7 * recent + took) / 8) end
  redis.call('SET', recent_key, integer(took), 'PX', lifetime(tonumber(ARGV[4])))
end
return 1
