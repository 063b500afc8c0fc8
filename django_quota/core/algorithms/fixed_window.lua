-- fixed_window: one counter, opened by the first hit and closed one window later. A module of decide.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>"
-- ARGV   capacity; a = window in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more

local function read(limit)
  limit.count, limit.stop = 0, now
  local value = redis.call('GET', limit.key)
  if not value then return end
  local count, stop = string.match(value, '^(%d+) (%d+)$')
  count, stop = count + 0, stop + 0
  if stop > now and count > 0 then limit.count, limit.stop = count, stop end
end

local function write(limit)
  redis.call('SET', limit.key, integer(limit.count) .. ' ' .. integer(limit.stop), 'PX', lifetime(limit.stop - now))
end

-- Consumes in a window that ends at `stop`, if it is opened now.
local function consume_until(limit, stop, over)
  if limit.count == 0 then limit.stop = stop end
  -- A full window refuses everything, so refusals above the limit need no count.
  local full = over and MOST or math.max(limit.capacity, limit.count)
  limit.count = math.min(limit.count + limit.cost, full)
  write(limit)
  local reset = limit.stop - now
  return limit.capacity - limit.count, 0, reset, reset
end

return {
  read = read,
  write = write,
  consume_until = consume_until,

  -- `is_read`: the caller has read the count and its end.
  peek = function(limit, is_read)
    if not is_read then read(limit) end
    local count, capacity, cost = limit.count, limit.capacity, limit.cost
    local remaining, reset = capacity - count, limit.stop - now
    local more = count > 0 and capacity > 0 and reset or NEVER
    if capacity > 0 and count + cost <= capacity then return true, remaining, 0, reset, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, reset, more end
    return false, remaining, reset, reset, more
  end,

  consume = function(limit, over) return consume_until(limit, now + limit.a, over) end,
}
