-- lease_common: what the scripts of the leases share. It goes before each of them, after clock.
--
-- A token is <process>.<number>.<limit>.<span>: its process, the number of slots, and how long its lease lasts.
--
-- KEYS   those of the script after it: [1] the leases: a sorted set, token -> when it ends; [2] the queue of waiting tokens, in
--        the order of their arrival: a list; [3] which of them are alive: a sorted set, token -> until when, unless its place is
--        kept longer
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the token that asks
-- reply  that of the script after it
local leases_key, queue_key, alive_key = KEYS[1], KEYS[2], KEYS[3]
local token = ARGV[2]

-- Returns when what a sorted set says of a token ends; nothing where it has ended.
local function ends(key, member)
  local stop = tonumber(redis.call('ZSCORE', key, member) or 0)
  return stop > now and stop or nil
end

-- Drops the dead at the front of the queue, a hundred at a time: a machine that is gone may leave many.
local function drop_dead_at_front()
  local dead, seen
  repeat
    local front = redis.call('LRANGE', queue_key, 0, 99)
    if not front[1] then return end
    local stops = redis.call('ZMSCORE', alive_key, unpack(front))
    dead, seen = 0, #front
    while dead < seen and tonumber(stops[dead + 1] or 0) <= now do dead = dead + 1 end
    if dead > 0 then
      redis.call('LTRIM', queue_key, dead, -1)
      redis.call('ZREM', alive_key, unpack(front, 1, dead))
    end
  until dead < seen
end

-- Returns who is alive at a place of the queue, counted from 0, and until when; the dead up to there are dropped.
local function waiter_at(place)
  while true do
    local waiter = redis.call('LINDEX', queue_key, place)
    if not waiter then return end
    local stop = ends(alive_key, waiter)
    if stop then return waiter, stop end
    if place == 0 then
      drop_dead_at_front()
    else
      redis.call('LREM', queue_key, 1, waiter)
      redis.call('ZREM', alive_key, waiter)
    end
  end
end

-- Takes a token out of the queue; says whether it was alive there.
local function leave(one)
  if not redis.call('ZSCORE', alive_key, one) then return false end
  local was_alive = ends(alive_key, one) ~= nil
  redis.call('ZREM', alive_key, one)
  redis.call('LREM', queue_key, 1, one)
  return was_alive
end

local function process_of(one) return one:match('^[^.]*') end

-- Returns the first of those who wait, and how long its lease lasts, where a slot is free for it.
local function next_in_line()
  local first = waiter_at(0)
  if not first then return end
  local limit, span = first:match('%.(%d+)%.(%d+)$') -- an earlier version's token says neither
  local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
  if not limit or held < tonumber(limit) then return first, tonumber(span) end
end

-- Wakes the next in line, so that it asks again. Without the permission, it asks again a second later.
local function wake_next()
  local first = next_in_line()
  if first then redis.pcall('PUBLISH', 'django_quota:wake:' .. process_of(first), first) end
end

-- Lets a lease last for `span` microseconds from now.
local function hold(one, span)
  redis.call('ZADD', leases_key, integer(now + span), one)
  keep(leases_key, span)
end

local function until_all_end()
  local last = redis.call('ZRANGE', leases_key, -1, -1, 'WITHSCORES')
  return last[1] and math.max(0, tonumber(last[2]) - now) or 0
end

-- Returns how long until one more of `limit` slots is free, at the latest. More may be held, under a higher limit.
local function until_one_more(limit)
  local held = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
  local over = math.max(0, held - limit)
  local ending = redis.call('ZRANGEBYSCORE', leases_key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', over, 1)
  return tonumber(ending[2]) - now
end
