-- fixed_window: one counter, opened by the first hit and closed a window later.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>"
-- ARGV   capacity; a = window in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more

local function window_read(limit, now)
  limit.count, limit.stop = 0, now
  local value = redis.call('GET', limit.key)
  if not value then return end
  local count, stop = string.match(value, '^(%d+) (%d+)$')
  if tonumber(stop) > now then limit.count, limit.stop = tonumber(count) - limit.credit, tonumber(stop) end
  if limit.count <= 0 then limit.count, limit.stop = 0, now end
end

local function window_write(limit, now)
  redis.call('SET', limit.key, integer(limit.count) .. ' ' .. integer(limit.stop), 'PX', lifetime(limit.stop - now))
end

local function window_peek(limit, now)
  window_read(limit, now)
  local remaining = math.max(0, limit.capacity - limit.count)
  local reset = limit.stop - now
  local more = limit.count > 0 and limit.capacity > 0 and reset or NEVER
  if limit.capacity > 0 and limit.count + limit.cost <= limit.capacity then return true, remaining, 0, reset, more end
  if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, reset, more end
  return false, remaining, reset, reset, more
end

local function window_consume(limit, now, stop, over)
  if limit.count == 0 then limit.stop = stop end
  -- A full window refuses everything: there is no need to count refusals further.
  local full = over and MOST or math.max(limit.capacity, limit.count)
  limit.count = math.min(limit.count + limit.cost, full)
  window_write(limit, now)
  local reset = limit.stop - now
  return math.max(0, limit.capacity - limit.count), 0, reset, reset
end

local function window_refund(limit, now)
  window_read(limit, now)
  limit.count = limit.count - limit.cost
  if limit.count > 0 then window_write(limit, now) else redis.call('DEL', limit.key) end
end

algorithms.fixed_window = {
  peek = window_peek,
  consume = function(limit, now, over) return window_consume(limit, now, now + limit.a, over) end,
  refund = window_refund,
}
