-- stock: what a counter holds; waiting restores nothing. A module of decide; it follows leased_units.
--
-- KEYS   limit.key: the total, a string that INCRBY has written; limit.leased_key: see leased_units; nil without a lease
-- ARGV   capacity: not used; a = how long the counter lives after a change, b = how long a lease lasts, in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more; remaining is
--        at most MOST, and below zero if more is owed

local function read(limit)
  local total = redis.call('GET', limit.key) or '0'
  if not is_integer(total) then error('not an integer: ' .. limit.key, 0) end
  return math.max(-MOST, math.min(MOST, tonumber(total)))
end

-- Redis adds, because Lua counts in doubles. A total that would overflow 64 bits stays as it is.
local function add(limit, units)
  local reply = redis.pcall('INCRBY', limit.key, units < 0 and '-' .. integer(-units) or integer(units))
  if not failed(reply) then
    expire(limit.key, limit.a)
  elseif not string.find(reply.err, 'overflow', 1, true) then
    error(reply, 0)
  end
end

return {
  add = add,

  peek = function(limit)
    if limit.leased_key and mode ~= 'peek' then give_back_ended(limit.leased_key, limit.key) end
    local total = read(limit)
    local allowed = total >= limit.cost
    return allowed, total, allowed and 0 or NEVER, 0, NEVER
  end,

  -- `over`: units that are used, so they have no lease.
  consume = function(limit, over)
    add(limit, -limit.cost)
    if limit.leased_key and not over then
      redis.call('ZADD', limit.leased_key, integer(now + limit.b), (limit.value or '') .. ':' .. integer(limit.cost))
      keep(limit.leased_key, limit.a + limit.b)
    end
    return read(limit), 0, 0, NEVER
  end,
}
