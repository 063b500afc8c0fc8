-- sliding_window: never more than the limit in any window, in a bounded sorted set.
--
-- KEYS   limit.key: a sorted set; score = when the entry expires (microseconds), member = "<running total>:<cost>"
-- ARGV   capacity; a = window; b = slice width (0: every hit is an entry); both in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more
--
-- What is used is (last total - total before the first live entry): no scan. Totals count modulo 2^52.

local SLIDING_WRAP = 4503599627370496

-- Reads the first live entry (skipping the expired ones: they are dropped by the next spend) and the last.
local function sliding_read(limit, now)
  limit.used, limit.total, limit.expiry = 0, 0, now
  if limit.abandoned then return limit.algorithm.foresee(limit, now) end
  local last = redis.call('ZRANGE', limit.key, -1, -1, 'WITHSCORES')
  if not last[1] then return end
  limit.has_expired = tonumber(last[2]) <= now
  if limit.has_expired then return end
  local first = redis.call('ZRANGE', limit.key, 0, 0, 'WITHSCORES')
  if tonumber(first[2]) <= now then
    limit.has_expired = true
    first = redis.call('ZRANGEBYSCORE', limit.key, '(' .. integer(now), '+inf', 'LIMIT', 0, 1, 'WITHSCORES')
  end
  local first_total, first_cost = string.match(first[1], '^(%d+):(%d+)$')
  local last_total, last_cost = string.match(last[1], '^(%d+):(%d+)$')
  limit.first_expiry = tonumber(first[2])
  limit.first_cost = tonumber(first_cost)
  limit.base = tonumber(first_total) - limit.first_cost
  limit.total = tonumber(last_total)
  limit.last, limit.last_cost = last[1], tonumber(last_cost)
  limit.expiry = tonumber(last[2])
  limit.used = (limit.total - limit.base) % SLIDING_WRAP
end

-- Finds by bisection the first entry whose end gives `needed` back.
local function sliding_wait(limit, needed, now)
  if limit.first_cost >= needed then return limit.first_expiry - now end
  for _, entry in ipairs(limit.entries or {}) do
    needed = needed - entry.cost
    if needed <= 0 then return tonumber(entry.score) - now end
  end
  local low = redis.call('ZCOUNT', limit.key, '-inf', integer(now)) + 1
  local high = redis.call('ZCARD', limit.key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('ZRANGE', limit.key, middle, middle)
    local total = tonumber(string.match(entry[1], '^(%d+):'))
    if (total - limit.base) % SLIDING_WRAP >= needed then high = middle else low = middle + 1 end
  end
  return tonumber(redis.call('ZRANGE', limit.key, low, low, 'WITHSCORES')[2]) - now
end

local function sliding_more(limit, now)
  if limit.used == 0 or limit.capacity == 0 then return NEVER end
  return sliding_wait(limit, math.max(0, limit.used - limit.capacity) + 1, now)
end

algorithms.sliding_window = {
  peek = function(limit, now)
    sliding_read(limit, now)
    local remaining = math.max(0, limit.capacity - limit.used)
    local reset, more = limit.expiry - now, sliding_more(limit, now)
    if limit.capacity > 0 and limit.used + limit.cost <= limit.capacity then return true, remaining, 0, reset, more end
    if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, reset, more end
    return false, remaining, sliding_wait(limit, limit.used + limit.cost - limit.capacity, now), reset, more
  end,

  consume = function(limit, now, over)
    local expiry = now + limit.a
    if limit.b > 0 then expiry = (math.floor(now / limit.b) + 1) * limit.b - 1 + limit.a end
    local merged = 0
    local is_full = over and limit.b == 0 and redis.call('ZCOUNT', limit.key, '(' .. integer(now), '+inf') > limit.capacity
    if limit.used > 0 and (is_full or limit.expiry >= expiry) then
      -- The same slice, or a clock that stepped back: entries must stay in the order of their totals. If each hit is an
      -- entry, hits over the limit add no more entries than the limit has hits.
      expiry, merged = math.max(limit.expiry, expiry), limit.last_cost
    end
    -- An entry of the whole limit refuses everything: only a hold, which may be restored in part, counts further.
    local cost = over and math.min(limit.cost, math.max(0, MOST - limit.used)) or math.min(limit.cost, math.max(0, limit.capacity - merged))
    local member = integer((limit.total + cost) % SLIDING_WRAP) .. ':' .. integer(merged + cost)
    -- Add first: a full server refuses a script's first write, and accepts later ones.
    redis.call('ZADD', limit.key, integer(expiry), member)
    if merged > 0 and member ~= limit.last then redis.call('ZREM', limit.key, limit.last) end
    if merged == 0 or expiry > limit.expiry then expire(limit.key, expiry - now) end
    if limit.has_expired then redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now)) end
    local first_expiry = limit.used > 0 and limit.first_expiry or expiry
    return math.max(0, limit.capacity - limit.used - cost), 0, expiry - now, first_expiry - now
  end,

  -- Takes from the oldest entries: what stays expires no earlier than the hits that still count.
  refund = function(limit, now)
    redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
    local left = limit.cost
    while left > 0 do
      local entry = redis.call('ZRANGE', limit.key, 0, 0, 'WITHSCORES')
      if not entry[1] then return end
      local total, cost = string.match(entry[1], '^(%d+):(%d+)$')
      if tonumber(cost) > left then
        -- Add before removing: an empty set is gone, and its TTL with it.
        redis.call('ZADD', limit.key, entry[2], total .. ':' .. integer(tonumber(cost) - left))
      end
      redis.call('ZREM', limit.key, entry[1])
      left = left - tonumber(cost)
    end
  end,
}
