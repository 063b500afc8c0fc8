-- lease_acquire: takes a slot if one is free. A token that already holds one does not take another.
--
-- KEYS   [1] the leases; [2] how long holders have kept the slot recently: a whole number of microseconds, 0 if it was
--        not given back yet
-- ARGV   [1] now; [2] the token; [3] the number of slots; [4] how long the lease lasts, in microseconds
-- reply  {granted, free, wait, reset, now}: whole numbers, times in microseconds
--        granted 1: the slot is the token's; 0: refused, and nothing has changed
--        free: slots that are not held; wait: an estimate of how long until one more is free; reset: until all leases
--        end
local recent_key = KEYS[2]
local limit, span = tonumber(ARGV[3]), tonumber(ARGV[4])
local live = '(' .. integer(now)
local held = redis.call('ZCOUNT', leases_key, live, '+inf')
local recent = tonumber(redis.call('GET', recent_key))

local granted = is_held() and 1 or 0
if granted == 1 or held < limit then
  -- Add first: a full server refuses the first write of a script, and accepts the writes after it.
  hold(span)
  redis.call('ZREMRANGEBYSCORE', leases_key, '-inf', integer(now))
  held, granted = held + 1 - granted, 1
  if held >= limit and not recent then redis.call('SET', recent_key, 0, 'PX', lifetime(span)) end
end

-- One more slot is free when `over` + 1 leases have ended: at the latest when they expire, and sooner if their holders
-- give the slots back as soon as earlier holders did.
local over = math.max(0, held - limit)
local wait = tonumber(redis.call('ZRANGEBYSCORE', leases_key, live, '+inf', 'WITHSCORES', 'LIMIT', over, 1)[2]) - now
if recent and recent > 0 then wait = math.max(1, math.min(wait, math.floor(recent * (over + 1) / held))) end
local last = redis.call('ZRANGE', leases_key, -1, -1, 'WITHSCORES')
return { granted, math.max(0, limit - held), wait, tonumber(last[2]) - now, now }
