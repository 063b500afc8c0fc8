-- distinct: at most `capacity` different values in any window; a known value is free, and stays known. A module of
-- decide.
--
-- KEYS   limit.key: a sorted set; score = when the value is forgotten (microseconds), member = its digest
-- ARGV   capacity; a = window in microseconds; the option "value" of the hit: the digest (none for a peek without one)
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more

local function read(limit)
  limit.live = redis.call('ZCOUNT', limit.key, '(' .. integer(now), '+inf')
  local last = redis.call('ZRANGE', limit.key, '-1', '-1', 'WITHSCORES')
  limit.expiry = limit.live > 0 and tonumber(last[2]) or now
  local score = limit.value and redis.call('ZSCORE', limit.key, limit.value)
  limit.known = score and tonumber(score) > now
  limit.until_now = limit.known and tonumber(score)
end

-- How long until a forgotten value makes room.
local function more_after(limit)
  if limit.live == 0 or limit.capacity == 0 then return NEVER end
  local makes_room = redis.call('ZRANGEBYSCORE', limit.key, '(' .. integer(now), '+inf', 'WITHSCORES', 'LIMIT',
    integer(math.max(0, limit.live - limit.capacity)), '1')
  return tonumber(makes_room[2]) - now
end

return {
  peek = function(limit)
    read(limit)
    local remaining = limit.capacity - limit.live
    local reset = limit.expiry - now
    local adds = limit.cost > 0 and not limit.known and 1 or 0
    local more = more_after(limit)
    local has_room = adds == 0 or limit.live + 1 <= limit.capacity
    if limit.capacity > 0 and has_room then return true, remaining, 0, reset, more end
    return false, remaining, more, reset, more -- a new value has no room: it waits for the same moment
  end,

  consume = function(limit)
    -- After a clock steps back, a value is not forgotten sooner. A known value stays known for a microsecond more: so
    -- restore can tell whether a hit has added the value.
    local stop = now + limit.a
    if limit.known then stop = math.max(stop, limit.until_now) + 1 end
    redis.call('ZADD', limit.key, integer(stop), limit.value)
    redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
    read(limit)
    expire(limit.key, limit.expiry - now)
    return limit.capacity - limit.live, 0, limit.expiry - now, more_after(limit)
  end,
}
