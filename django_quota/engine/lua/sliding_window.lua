-- sliding_window: never more than the limit in any window, in a bounded sorted set. A module of decide.
--
-- KEYS   limit.key: a sorted set; score = when the entry expires (microseconds), member = "<running total>:<cost>"
-- ARGV   capacity; a = window; b = slice width (0: every hit is an entry); both in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more
--
-- What is used is (last total - total before the first live entry): no scan. Totals count modulo 2^52.
local WRAP = 4503599627370496

-- Reads the first live entry (skipping the expired ones: they are dropped by the next consume) and the last.
local function read(limit)
  limit.used, limit.total, limit.expiry = 0, 0, now
  if limit.abandoned then return limit.algorithm.foresee(limit) end
  local key = limit.key
  local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if not last[1] then return end
  local expiry = last[2] + 0
  limit.has_expired = expiry <= now
  if limit.has_expired then return end
  local first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
  local first_expiry = first[2] + 0
  if first_expiry <= now then
    limit.has_expired = true
    first = redis.call('ZRANGEBYSCORE', key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    first_expiry = first[2] + 0
  end
  local first_total, first_cost = string.match(first[1], '^(%d+):(%d+)$')
  local total = string.match(last[1], '%d+') + 0
  limit.first_expiry, limit.first_cost, limit.base = first_expiry, first_cost + 0, first_total - first_cost
  limit.last, limit.total, limit.expiry, limit.used = last[1], total, expiry, (total - limit.base) % WRAP
end

-- Finds by bisection the first entry whose end gives `needed` back.
local function wait_for(limit, needed)
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
    if (total - limit.base) % WRAP >= needed then high = middle else low = middle + 1 end
  end
  return tonumber(redis.call('ZRANGE', limit.key, low, low, 'WITHSCORES')[2]) - now
end

return {
  WRAP = WRAP,

  peek = function(limit)
    read(limit)
    local used, capacity, cost = limit.used, limit.capacity, limit.cost
    local reset, more = limit.expiry - now, NEVER
    if used > 0 and capacity > 0 then more = wait_for(limit, used > capacity and used - capacity + 1 or 1) end
    local remaining = used < capacity and capacity - used or 0
    if capacity > 0 and used + cost <= capacity then return true, remaining, 0, reset, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, reset, more end
    return false, remaining, wait_for(limit, used + cost - capacity), reset, more
  end,

  consume = function(limit, over)
    local key, used, capacity, slice = limit.key, limit.used, limit.capacity, limit.b
    local expiry, merged = now + limit.a, 0
    if slice > 0 then expiry = now - now % slice + slice - 1 + limit.a end
    local is_full = over and slice == 0 and redis.call('ZCOUNT', key, '(' .. integer(now), '+inf') > capacity
    if used > 0 and (is_full or limit.expiry >= expiry) then
      -- The same slice, or a clock that stepped back: entries must stay in the order of their totals. If each hit is an
      -- entry, hits over the limit add no more entries than the limit has hits.
      expiry, merged = math.max(limit.expiry, expiry), tonumber(string.match(limit.last, '%d+$'))
    end
    -- An entry of the whole limit refuses everything: only a hold, which may be restored in part, counts further.
    local cost = math.min(limit.cost, math.max(0, over and MOST - used or capacity - merged))
    local member = integer((limit.total + cost) % WRAP) .. ':' .. integer(merged + cost)
    -- Add first: a full server refuses a script's first write, and accepts later ones.
    redis.call('ZADD', key, integer(expiry), member)
    if merged > 0 and member ~= limit.last then redis.call('ZREM', key, limit.last) end
    if merged == 0 or expiry > limit.expiry then expire(key, expiry - now) end
    if limit.has_expired then redis.call('ZREMRANGEBYSCORE', key, '-inf', integer(now)) end
    local first_expiry = used > 0 and limit.first_expiry or expiry
    return math.max(0, capacity - used - cost), 0, expiry - now, first_expiry - now
  end,

  -- Takes from the oldest entries: what stays expires no earlier than the hits that still count.
  refund = function(limit)
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
