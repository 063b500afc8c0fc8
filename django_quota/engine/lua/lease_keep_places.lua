-- lease_keep_places: keeps the places of a process' tokens in the queue.
--
-- KEYS   [1] the leases: not used; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] for how long, in microseconds; [3...] the tokens, at most 500
-- reply  the tokens that should ask again: those without a place, and the first of the queue
local ttl, tokens = tonumber(ARGV[2]), { unpack(ARGV, 3) }
local first, kept, again = waiter_at(0), {}, {}
for i, stop in ipairs(redis.call('ZMSCORE', alive_key, unpack(tokens))) do
  local is_alive = tonumber(stop or 0) > now
  if is_alive then
    kept[#kept + 1] = integer(now + ttl)
    kept[#kept + 1] = tokens[i]
  end
  if not is_alive or tokens[i] == first then again[#again + 1] = tokens[i] end
end
if #kept > 0 then
  redis.call('ZADD', alive_key, unpack(kept))
  keep(queue_key, ttl)
  keep(alive_key, ttl)
end
return again
