-- subscription: one counter for each week, month or year that begins on the subject's own day, which may change. A
-- module of decide. The caller knows the day and the time zone, Redis the time.
--
-- KEYS   limit.key: a string "<count> <end> <begin> <last>": when its period ends by the day on which it was opened,
--        when it began, and when something was last counted, in microseconds
-- ARGV   capacity; a, b, c, d = the edges of the period around now, [a, b), and the ends of the next two
-- reply  as fixed_window; outside: whether now is not in [a, b), so that the caller must send other edges
local window = need('fixed_window')
local SLACK = 432000000000 -- how much longer the longest period of a unit is than the shortest: five days

-- Until when an open count counts: at most two periods away.
local function stop_of(limit)
  return limit.ends <= limit.b and limit.b or limit.ends <= limit.c and limit.c or limit.d
end

-- Reads what is counted, unless a period has begun since its end and its last hit.
local function read(limit)
  limit.count, limit.stop, limit.begin = 0, now, nil
  local value = redis.call('GET', limit.key)
  if not value then return end
  local count, ends, begin, last = string.match(value, '^(%d+) (%d+) (%d+) (%d+)$')
  ends, last = ends + 0, last + 0
  if ends <= limit.a and last < limit.a then return end
  limit.count, limit.ends, limit.begin, limit.last = count + 0, ends, begin + 0, last
  if limit.count > 0 then limit.stop = stop_of(limit) end
end

-- It is remembered until a period must have begun since, whatever the subject's day is then.
local function write(limit)
  local span = math.max(limit.ends, limit.last) + (limit.ends - limit.begin) + SLACK - now
  local times = integer(limit.ends) .. ' ' .. integer(limit.begin) .. ' ' .. integer(limit.last)
  redis.call('SET', limit.key, integer(limit.count) .. ' ' .. times, 'PX', lifetime(span))
end

-- Gives units back that were counted by `moment`.
local function restore(limit, units, moment)
  read(limit)
  if not limit.begin or limit.begin > moment then return end
  limit.count = math.max(0, limit.count - units)
  write(limit)
end

return {
  has_last_edge = true,
  outside = function(limit) return now < limit.a or now >= limit.b end,
  restore = restore,

  peek = function(limit)
    read(limit)
    return window.peek(limit, true)
  end,

  consume = function(limit, over)
    if not limit.begin then
      limit.ends, limit.begin, limit.last = limit.b, limit.a, now
    end
    limit.last = math.max(limit.last, now)
    local full = over and MOST or math.max(limit.capacity, limit.count)
    limit.count = math.min(limit.count + limit.cost, full)
    write(limit)
    local reset = stop_of(limit) - now
    return limit.capacity - limit.count, 0, reset, reset
  end,
}
