-- sliding_entries: the entries of a sliding window. Part of decide, before the frame.
--
-- KEYS   key: a sorted set; score = when the entry expires (microseconds), member = "<running total>:<cost>"
-- ARGV   none
-- reply  read_entries: what is used, when the last entry expires, whether some have expired, the running total; if
--        anything is used also the last entry {member, score} and its cost, when the first live one expires, and its
--        cost. add_entry takes a key, a cost, the capacity, the window, the width of a slice (0: every hit is an
--        entry), and these eight; it returns remaining, retry_after, reset, more
--
-- What is used is (last total - total before the first live entry) modulo WRAP: no scan.

local function read_entries(key)
  local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  local expiry = last[1] and last[2] + 0 or 0
  if expiry <= now then return 0, now, expiry > 0, 0 end
  local total, last_cost = string.match(last[1], '^(%d+):(%d+)$')
  -- A total that has wrapped is above any cost. So one that equals the cost of its entry: nothing was counted before.
  if total == last_cost then return total + 0, expiry, false, total + 0, last, last_cost + 0, expiry, last_cost + 0 end
  local first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
  local has_expired = false
  if first[2] + 0 <= now then
    has_expired = true -- add_entry drops these
    first = redis.call('ZRANGEBYSCORE', key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  end
  local first_total, first_cost = string.match(first[1], '^(%d+):(%d+)$')
  local used = (total - first_total + first_cost) % WRAP
  return used, expiry, has_expired, total + 0, last, last_cost + 0, first[2] + 0, first_cost + 0
end

local function add_entry(
  key, cost, capacity, window, slice, used, last_expiry, has_expired, total, last, last_cost, first_expiry
)
  local expiry = now + window
  local merged = 0
  local score
  if slice > 0 then expiry = now - now % slice + slice - 1 + window end
  local is_full = slice == 0 and used > capacity and redis.call('ZCOUNT', key, '(' .. integer(now), '+inf') > capacity
  if used > 0 and (is_full or last_expiry >= expiry) then
    -- The same slice, or a clock that stepped back: entries must stay in the order of their totals. If each hit is an
    -- entry, hits over the limit add no more entries than the limit has hits.
    merged = last_cost
    if last_expiry >= expiry then
      expiry = last_expiry
      score = last[2]
    end
  end
  if used + cost > MOST then cost = math.max(0, MOST - used) end
  total = total + cost
  if total >= 2 * WRAP then total = total - WRAP end
  local member = integer(total) .. ':' .. integer(merged + cost)
  -- Add first: a full server refuses a script's first write, and accepts later ones.
  redis.call('ZADD', key, score or integer(expiry), member)
  if merged > 0 and member ~= last[1] then redis.call('ZREM', key, last[1]) end
  if merged == 0 or expiry > last_expiry then expire(key, expiry - now) end
  if has_expired then redis.call('ZREMRANGEBYSCORE', key, '-inf', integer(now)) end
  return capacity - used - cost, 0, expiry - now, (used > 0 and first_expiry or expiry) - now
end
