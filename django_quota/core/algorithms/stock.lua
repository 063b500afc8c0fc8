-- stock: what a counter holds; waiting restores nothing. A module of decide; it follows leased_units.
--
-- KEYS   limit.key: the total, a string that INCRBY has written; limit.grants_key: the units of it that expire, see
--        grants; limit.leased_key: see leased_units; nil without a lease
-- ARGV   capacity: not used; a = how long the counter lives after a change, b = how long a lease lasts, in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more; remaining is
--        at most MOST, and below zero if more is owed

-- What is read of a counter is kept until leases give back.
local function grants_of(limit)
  if limit.grants then return limit.grants end
  local grants, problem = open_grants(limit.key, limit.grants_key)
  if not grants then error(problem, 0) end
  limit.grants = grants
  return grants
end

local function read(limit)
  local total = redis.call('GET', limit.key) or '0'
  if not is_integer(total) then error('not an integer: ' .. limit.key, 0) end
  return math.max(-MOST, math.min(MOST, tonumber(total) - grants_of(limit).expired))
end

-- Writes after a change. A total that would overflow 64 bits stays as it is.
local function written(limit, problem)
  if not problem then
    expire(limit.key, limit.a)
    if limit.grants.had_any or limit.grants.live[1] then need_grants().write(limit.grants, limit.a) end
    return
  end
  if not string.find(problem.err, 'overflow', 1, true) then error(problem, 0) end
end

-- Of which grants units go back: what was used counts against what expires first.
local function unused(limit, units, drawn)
  local rest, back = limit.cost, {}
  for _, each in ipairs(drawn) do rest = rest - each.units end
  units = units - math.min(units, rest)
  for at = #drawn, 1, -1 do
    local part = math.min(units, drawn[at].units)
    units = units - part
    if part > 0 then back[#back + 1] = { expires = drawn[at].expires, units = part } end
  end
  return back
end

return {
  -- Gives units of a hit back. `drawn`: what the hit took of grants, encoded.
  give_back = function(limit, units, drawn)
    local back = unused(limit, units, read_drawn(drawn))
    written(limit, need_grants().give_back(grants_of(limit), units, back))
  end,

  begin = function(limit) give_back_ended(limit.leased_key, limit.key, limit.grants_key) end,

  peek = function(limit)
    local total = read(limit)
    local allowed = total >= limit.cost
    return allowed, total, allowed and 0 or NEVER, 0, NEVER
  end,

  -- `over`: units that are used, so they have no lease.
  consume = function(limit, over)
    local grants, words = grants_of(limit), {}
    local problem = change(grants, '-' .. integer(limit.cost))
    local drawn = not problem and grants.had_any and need_grants().use_up(grants.live, limit.cost)
    written(limit, problem)
    for at, each in ipairs(drawn or {}) do
      words[at] = integer(each.expires) .. '-' .. integer(each.units)
      if mode ~= 'adjust' then
        need('flag')(limit.hit, DRAWN_OF, each.expires)
        need('flag')(limit.hit, DRAWN, each.units)
      end
    end
    if limit.leased_key and not over then
      local member = (limit.value or '') .. ':' .. integer(limit.cost) .. ':' .. table.concat(words, ';')
      redis.call('ZADD', limit.leased_key, integer(now + limit.b), member)
      keep(limit.leased_key, limit.a + limit.b)
    end
    return read(limit), 0, 0, NEVER
  end,
}
