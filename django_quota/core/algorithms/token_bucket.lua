-- token_bucket: GCRA; bursts up to the capacity, then a steady refill. A module of decide.
--
-- KEYS   limit.key: a string "<TAT> <written>": the theoretical arrival time, and when it was written, in microseconds
-- ARGV   capacity = burst; a = interval between hits in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more
--
-- A clock that steps back would look like a backlog as long as the step. So a bucket that was written later than now
-- moves back with the clock, as if the step had been refunded.

local function read(limit)
  limit.backlog, limit.step, limit.written, limit.tat = 0, 0, now, 0
  local value = redis.call('GET', limit.key)
  if not value then return end
  local tat, written = string.match(value, '^(%d+) (%d+)$')
  tat, limit.written = tat + 0, written + 0
  if limit.written > now then limit.step = limit.written - now end
  limit.tat = tat - limit.step
  if limit.tat > now then limit.backlog = limit.tat - now end
end

local function write(limit, written)
  redis.call('SET', limit.key, integer(now + limit.backlog) .. ' ' .. integer(written), 'PX', lifetime(limit.backlog))
end

local function remaining_of(limit)
  return math.floor((limit.capacity * limit.a - limit.backlog) / limit.a)
end

-- How long until one unit more is left.
local function more_after(limit, remaining)
  if limit.backlog == 0 or limit.capacity == 0 then return NEVER end
  return limit.backlog - (limit.capacity - math.max(0, remaining) - 1) * limit.a
end

return {
  read = read,
  write = write,

  peek = function(limit)
    read(limit)
    local capacity, cost, backlog = limit.capacity, limit.cost, limit.backlog
    local wait = backlog + (cost - capacity) * limit.a
    local remaining = remaining_of(limit)
    local more = more_after(limit, remaining)
    if capacity > 0 and wait <= 0 then return true, remaining, 0, backlog, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, backlog, more end
    return false, remaining, wait, backlog, more
  end,

  -- Unless `over`, never further than a full bucket from now, even if refusals count.
  consume = function(limit, over)
    local full = over and MOST or math.max(limit.capacity * limit.a, limit.backlog)
    limit.backlog = math.min(limit.backlog + limit.cost * limit.a, full)
    write(limit, now)
    local remaining = remaining_of(limit)
    return remaining, 0, limit.backlog, more_after(limit, remaining)
  end,

  -- Writes a bucket after the clock has stepped back: from then on time passes for it again.
  follow_clock = function(limit)
    if limit.step > 0 then write(limit, now) end
  end,
}
