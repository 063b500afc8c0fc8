-- grants: units of a counter that expire. Spending uses first what expires first. It is included where make_grants is
-- defined.
--
-- KEYS   grants.total_key: the total of a counter, with these units; grants.grants_key: a sorted set of
--        "<left>:<granted>:<expires>:<id>", scored by when the grant expires, which no other grant of the counter does in
--        the same microsecond
-- ARGV   those of the script or module after it
-- reply  a table of functions

-- A counter keeps grants that are used up, so that what comes back has its id; not if it has more than KEPT of them.
local KEPT, MOST_GRANTS = 100, 1000

-- Lowers what is left of these grants; returns what it took of which.
local function use_up(live, units)
  local drawn = {}
  for _, grant in ipairs(live) do
    if units <= 0 then break end
    local part = math.min(grant.left, units)
    grant.left, units = grant.left - part, units - part
    if part > 0 then
      grant.is_new = true
      drawn[#drawn + 1] = { expires = grant.expires, units = part, id = grant.id }
    end
  end
  return drawn
end

-- Reads grants: those that live, and how many units have expired; returns an error if they are something else.
local function read(grants)
  local all, live, sum = {}, {}, 0
  for at, member in ipairs(grants.live) do
    local left, granted, expires, id = string.match(member, '^(%d+):(%d+):(%d+):([^:]*)$')
    if not left then return { err = 'WRONGTYPE not the grants of a counter' } end
    sum = sum + left
    all[at] = { member = member, expires = expires + 0, left = left + 0, granted = granted + 0, id = id }
  end
  -- The total may have been lost, or changed by somebody else.
  use_up(all, sum - math.max(0, tonumber(redis.call('GET', grants.total_key) or 0)))
  for _, grant in ipairs(all) do
    if grant.expires > now then
      live[#live + 1] = grant
    else
      grants.expired = grants.expired + grant.left
      grants.has_expired = true
    end
  end
  grants.live = live
end

local function member_of(grant)
  return integer(grant.left) .. ':' .. integer(grant.granted) .. ':' .. integer(grant.expires) .. ':' .. grant.id
end

-- Writes what is left of grants, if there are or were any. `ttl`: how long the total lives from now, in microseconds; it
-- goes first.
local function write(grants, ttl)
  if not grants.had_any and not grants.live[1] then return end
  if grants.has_expired then redis.call('ZREMRANGEBYSCORE', grants.grants_key, '-inf', integer(now)) end
  for _, member in ipairs(grants.dropped or {}) do redis.call('ZREM', grants.grants_key, member) end
  for _, grant in ipairs(grants.live) do
    if grant.is_new then
      -- Add before removing: an empty set is gone, and its TTL with it.
      local member = member_of(grant)
      redis.call('ZADD', grants.grants_key, integer(grant.expires), member)
      if grant.member and grant.member ~= member then redis.call('ZREM', grants.grants_key, grant.member) end
      grant.member, grant.is_new = member, false
    end
  end
  expire(grants.grants_key, ttl + 1000000)
  grants.expired, grants.has_expired, grants.dropped = 0, false, nil
end

-- Takes what has expired from the total, and returns the total; the caller writes the grants, or puts it back.
local function lower(grants)
  redis.call('DECRBY', grants.total_key, integer(grants.expired))
  return redis.call('GET', grants.total_key)
end

local function put_expired_back(grants) redis.call('INCRBY', grants.total_key, integer(grants.expired)) end

-- Uses up grants for units that were taken of the total; returns what it took of which.
local function spend(grants, units, ttl)
  local drawn = use_up(grants.live, units)
  write(grants, ttl)
  return drawn
end

-- Returns the grant that expires then; a new one if there is none.
local function grant_at(grants, expires, id)
  local place = 1
  for at, grant in ipairs(grants.live) do
    if grant.expires == expires then return grant end
    if grant.expires < expires then place = at + 1 end
  end
  local grant = { expires = expires, left = 0, granted = 0, id = id or '' }
  table.insert(grants.live, place, grant)
  return grant
end

-- Adds what INCRBY takes to a total, the units of `drawn` to their grants, and pays what was owed of them. The caller
-- writes the grants. Returns nil; or the error, and nothing has changed.
local function credit(grants, amount, drawn)
  local debt = math.max(0, grants.expired - tonumber(redis.call('GET', grants.total_key) or 0))
  local problem = change(grants, amount)
  if problem then return problem end
  for _, each in ipairs(drawn) do
    local grant = grant_at(grants, each.expires, each.id)
    grant.left, grant.is_new = grant.left + each.units, true
    grant.granted = math.max(grant.granted, grant.left)
  end
  use_up(grants.live, debt)
end

-- Gives units back to a total; those of grants that have expired are lost. The rest is as for credit.
local function give_back(grants, units, drawn)
  local living = {}
  for _, each in ipairs(drawn) do
    if each.expires > now then
      living[#living + 1] = each
    else
      units = units - each.units
    end
  end
  return credit(grants, integer(units), living)
end

-- Says whether so many grants have room.
local function make_room(grants, more)
  if #grants.live + more > KEPT then
    local kept, dropped = {}, {}
    for _, grant in ipairs(grants.live) do
      if grant.left > 0 then
        kept[#kept + 1] = grant
      else
        dropped[#dropped + 1] = grant.member
      end
    end
    grants.live, grants.dropped = kept, dropped
  end
  return #grants.live + more <= MOST_GRANTS
end

return {
  credit = credit,
  give_back = give_back,
  lower = lower,
  make_room = make_room,
  member_of = member_of,
  put_expired_back = put_expired_back,
  read = read,
  spend = spend,
  use_up = use_up,
  write = write,
}
