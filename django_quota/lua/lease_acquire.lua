-- lease_acquire: take a slot where one is free and nobody who came earlier waits for it; or wait in the queue.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token; [3] how many slots there are; [4] how long the lease lasts, in microseconds
--        [5] how long the token is alive in the queue without asking again, in microseconds; 0: it does not wait (any more)
-- reply  {granted, free, wait, reset, first, wake}: whole numbers, times in microseconds; wake is a text
--        granted 1: the slot is the token's; 0: refused, and nothing live has changed but the token's place in the queue
--        free: slots that nobody holds; wait: where refused, how long until that may change; where granted, until one more is
--        free at the latest; reset: until all leases end
--        first 1: the token is the first of those who wait
--        wake: who is the first now that the token has left the queue, and should ask again; '' for nobody
local limit, span, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
local free = limit - held

-- As many who wait as there are free slots may go: whoever is not among them waits.
local function may_go()
  for place = 0, free - 1 do
    local waiter = waiter_at(place)
    if not waiter or waiter == token then return true end
  end
  return false
end

local function until_all_end()
  local last = redis.call('ZRANGE', leases_key, -1, -1, 'WITHSCORES')
  return last[1] and math.max(0, tonumber(last[2]) - now) or 0
end

local function until_one_more()
  local over = math.max(0, redis.call('ZCARD', leases_key) - limit) -- held under a higher limit
  return tonumber(redis.call('ZRANGE', leases_key, over, over, 'WITHSCORES')[2]) - now
end

-- A token that holds a slot has asked again because the reply was lost.
local has_one = ends(leases_key, token) ~= nil
if has_one or may_go() then
  -- Adding comes first: a full server refuses a script's first write, and lets it finish later ones.
  redis.call('ZADD', leases_key, integer(now + span), token)
  keep(leases_key, span)
  redis.call('ZREMRANGEBYSCORE', leases_key, '-inf', integer(now))
  leave()
  if not has_one then free = free - 1 end
  return { 1, math.max(0, free), until_one_more(), until_all_end(), 0, waiter_at(0) or '' }
end

local first, wake = 0, ''
if patience > 0 then
  if not ends(alive_key, token) then
    redis.call('LREM', queue_key, 1, token)
    redis.call('RPUSH', queue_key, token)
  end
  redis.call('ZADD', alive_key, integer(now + patience), token)
  keep(queue_key, patience)
  keep(alive_key, patience)
  if waiter_at(0) == token then first = 1 end
elseif leave() then
  wake = waiter_at(0) or ''
end

local wait
if free > 0 then
  local _, stop = waiter_at(0) -- who may go, and does not come, is out of the way then
  wait = stop - now
else
  local next_free = redis.call('ZRANGEBYSCORE', leases_key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', held - limit, 1)
  wait = tonumber(next_free[2]) - now
end
return { 0, math.max(0, free), wait, until_all_end(), first, wake }
