-- lease_acquire: takes a slot if one is free and nobody who came earlier waits for it; or waits in the queue.
--
-- KEYS   [1] the leases; [2] the queue; [3] who in it is alive
-- ARGV   [1] now; [2] the token
--        [3] how long the token's place in the queue is kept, in microseconds; 0: it does not wait
-- reply  {granted, free, wait, reset, first}: whole numbers, times in microseconds
--        granted 1: the slot is the token's; 0: refused, and only the token's place in the queue has changed
--        free: slots that nobody holds; wait: if refused, how long until that may change; if granted, until one more is free at
--        the latest; reset: until all leases end
--        first 1: the token is the first in the queue
local limit, span = token:match('%.(%d+)%.(%d+)$')
limit, span = tonumber(limit), tonumber(span)
local ttl = tonumber(ARGV[3])
local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
local free = limit - held

-- The first tokens of the queue may take the free slots, one each. The others wait.
local function may_go()
  for place = 0, free - 1 do
    local waiter = waiter_at(place)
    if not waiter or waiter == token then return true end
  end
  return false
end

-- A token that holds a slot was given it while it waited, or asks again because the reply was lost.
local has_one = ends(leases_key, token) ~= nil
if has_one or may_go() then
  -- Adding comes first: a full server refuses a script's first write, and lets it finish later ones.
  hold(token, span)
  redis.call('ZREMRANGEBYSCORE', leases_key, '-inf', integer(now))
  leave(token)
  if not has_one then free = free - 1 end
  wake_next()
  return { 1, math.max(0, free), until_one_more(limit), until_all_end(), 0 }
end

local first = 0
if ttl > 0 then
  if not ends(alive_key, token) then
    redis.call('LREM', queue_key, 1, token)
    redis.call('RPUSH', queue_key, token)
  end
  redis.call('ZADD', alive_key, integer(now + ttl), token)
  keep(queue_key, ttl)
  keep(alive_key, ttl)
  if waiter_at(0) == token then first = 1 end
elseif leave(token) then
  wake_next()
end

local wait
if free > 0 then
  local _, stop = waiter_at(0) -- if the first does not come until then, its place is dropped
  wait = stop - now
else
  local next_free = redis.call('ZRANGEBYSCORE', leases_key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', held - limit, 1)
  wait = tonumber(next_free[2]) - now
end
return { 0, math.max(0, free), wait, until_all_end(), first }
