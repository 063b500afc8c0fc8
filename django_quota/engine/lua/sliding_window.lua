-- sliding_window: never more than the limit in any window, in a bounded sorted set. A module of decide.
--
-- KEYS   limit.key: a sorted set; score = when the entry expires (microseconds), member = "<running total>:<cost>"
-- ARGV   capacity; a = window; b = slice width (0: every hit is an entry); both in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more
--
-- What is used is (last total - total before the first live entry): no scan. Totals count modulo 2^52.

local WRAP = 4503599627370496

return {
  WRAP = WRAP,

  peek = function(limit)
    local key, capacity, cost = limit.key, limit.capacity, limit.cost
    local used, expiry, more = 0, now, NEVER
    limit.total = 0
    if limit.abandoned then
      used, expiry = need('holds').foresee(limit)
    else
      local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
      if last[1] then expiry = last[2] + 0 end
      if expiry > now then
        local total, last_cost = string.match(last[1], '^(%d+):(%d+)$')
        local first = last
        -- A subject that pauses has one entry, as a rule. Reading the first one takes five times as long as counting them.
        if total ~= last_cost or redis.call('ZCARD', key) > 1 then first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES') end
        local first_expiry = first[2] + 0
        if first_expiry <= now then
          limit.has_expired = true -- the next consume drops what has
          first = redis.call('ZRANGEBYSCORE', key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
          first_expiry = first[2] + 0
        end
        local first_total, first_cost = string.match(first[1], '^(%d+):(%d+)$')
        used = (total - first_total + first_cost) % WRAP
        limit.last, limit.total, limit.first_expiry, limit.first_cost = last, total + 0, first_expiry, first_cost + 0
      elseif last[1] then
        limit.has_expired, expiry = true, now
      end
    end
    limit.used, limit.expiry = used, expiry
    if used > 0 and capacity > 0 then
      local is_first = used <= capacity and limit.first_cost > 0
      more = is_first and limit.first_expiry - now or need('sliding_wait')(limit, math.max(0, used - capacity) + 1)
    end
    local remaining = used < capacity and capacity - used or 0
    if capacity > 0 and used + cost <= capacity then return true, remaining, 0, expiry - now, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, expiry - now, more end
    return false, remaining, need('sliding_wait')(limit, used + cost - capacity), expiry - now, more
  end,

  consume = function(limit, over)
    local key, used, capacity, slice = limit.key, limit.used, limit.capacity, limit.b
    local expiry, merged, score, last = now + limit.a, 0, nil, limit.last
    if slice > 0 then expiry = now - now % slice + slice - 1 + limit.a end
    local is_full = over and slice == 0 and redis.call('ZCOUNT', key, '(' .. integer(now), '+inf') > capacity
    if used > 0 and (is_full or limit.expiry >= expiry) then
      -- The same slice, or a clock that stepped back: entries must stay in the order of their totals. If each hit is an
      -- entry, hits over the limit add no more entries than the limit has hits.
      merged = string.match(last[1], '%d+$') + 0
      if limit.expiry >= expiry then expiry, score = limit.expiry, last[2] end
    end
    -- An entry of the whole limit refuses everything: only a hold, which may be restored in part, counts further.
    local cost, room = limit.cost, over and MOST - used or capacity - merged
    if cost > room then cost = room > 0 and room or 0 end
    local total, sum, member = (limit.total + cost) % WRAP, merged + cost, nil
    if total < 100000000 and sum < 100000000 then
      member = string.format('%d:%d', total, sum)
    else
      member = integer(total) .. ':' .. integer(sum)
    end
    -- Add first: a full server refuses a script's first write, and accepts later ones.
    redis.call('ZADD', key, score or integer(expiry), member)
    if merged > 0 and member ~= last[1] then redis.call('ZREM', key, last[1]) end
    if merged == 0 or expiry > limit.expiry then expire(key, expiry - now) end
    if limit.has_expired then redis.call('ZREMRANGEBYSCORE', key, '-inf', integer(now)) end
    local left = capacity - used - cost
    return left > 0 and left or 0, 0, expiry - now, (used > 0 and limit.first_expiry or expiry) - now
  end,
}
