-- fixed_window: one counter, opened by the first hit and closed a window later.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>"
-- ARGV   capacity; a = window in microseconds
-- reply  inspect: ok, remaining, wait, reset, more; spend: remaining, wait, reset, more

local function tally_read(limit, now)
  limit.count, limit.stop = 0, now
  local value = redis.call('GET', limit.key)
  if not value then return end
  local count, stop = string.match(value, '^(%d+) (%d+)$')
  if tonumber(stop) > now then limit.count, limit.stop = tonumber(count) - limit.credit, tonumber(stop) end
  if limit.count <= 0 then limit.count, limit.stop = 0, now end
end

local function tally_write(limit, now)
  redis.call('SET', limit.key, integer(limit.count) .. ' ' .. integer(limit.stop), 'PX', lifetime(limit.stop - now))
end

local function tally_inspect(limit, now)
  tally_read(limit, now)
  local remaining = math.max(0, limit.capacity - limit.count)
  local reset = limit.stop - now
  local more = limit.count > 0 and limit.capacity > 0 and reset or NEVER
  if limit.capacity > 0 and limit.count + limit.cost <= limit.capacity then return true, remaining, 0, reset, more end
  if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, reset, more end
  return false, remaining, reset, reset, more
end

local function tally_spend(limit, now, stop, over)
  if limit.count == 0 then limit.stop = stop end
  -- A full window refuses all: counting refusals further says nothing.
  local full = over and MOST or math.max(limit.capacity, limit.count)
  limit.count = math.min(limit.count + limit.cost, full)
  tally_write(limit, now)
  local reset = limit.stop - now
  return math.max(0, limit.capacity - limit.count), 0, reset, reset
end

local function tally_refund(limit, now)
  tally_read(limit, now)
  limit.count = limit.count - limit.cost
  if limit.count > 0 then tally_write(limit, now) else redis.call('DEL', limit.key) end
end

algorithms.fixed_window = {
  inspect = tally_inspect,
  spend = function(limit, now, over) return tally_spend(limit, now, now + limit.a, over) end,
  refund = tally_refund,
}
