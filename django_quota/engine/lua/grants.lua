-- grants: units of a counter that expire. Spending uses first what expires first. It is included where make_grants of
-- book is defined.
--
-- KEYS   book.total_key: the total of a counter, with these units; book.grants_key: a sorted set of
--        "<left>:<granted>:<expires>:<id>", scored by when the grant expires, which no other grant of the counter does in
--        the same microsecond
-- ARGV   those of the script or module after it
-- reply  a table of functions

-- A counter keeps grants that are used up, so that what comes back has its id; not if it has more than KEPT of them.
local KEPT, MOST_GRANTS = 100, 1000

-- Lowers what is left of grants; returns what it took of which.
local function use_up(grants, units)
  local drawn = {}
  for _, grant in ipairs(grants) do
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

-- Reads the grants of a book; returns an error if they are something else.
local function read(book)
  local grants, live, sum = {}, {}, 0
  for at, member in ipairs(book.grants) do
    local left, granted, expires, id = string.match(member, '^(%d+):(%d+):(%d+):([^:]*)$')
    if not left then return { err = 'WRONGTYPE not the grants of a counter' } end
    sum = sum + left
    grants[at] = { member = member, expires = expires + 0, left = left + 0, granted = granted + 0, id = id }
  end
  -- The total may have been lost, or changed by somebody else.
  use_up(grants, sum - math.max(0, tonumber(redis.call('GET', book.total_key) or 0)))
  for _, grant in ipairs(grants) do
    if grant.expires > now then
      live[#live + 1] = grant
    else
      book.lapsed = book.lapsed + grant.left
      book.has_expired = true
    end
  end
  book.grants = live
end

local function member_of(grant)
  return integer(grant.left) .. ':' .. integer(grant.granted) .. ':' .. integer(grant.expires) .. ':' .. grant.id
end

-- Writes what is left of grants. `ttl`: how long the total lives from now, in microseconds; it goes first.
local function write(book, ttl)
  if book.has_expired then redis.call('ZREMRANGEBYSCORE', book.grants_key, '-inf', integer(now)) end
  for _, member in ipairs(book.dropped or {}) do redis.call('ZREM', book.grants_key, member) end
  for _, grant in ipairs(book.grants) do
    if grant.is_new then
      -- Add before removing: an empty set is gone, and its TTL with it.
      local member = member_of(grant)
      redis.call('ZADD', book.grants_key, integer(grant.expires), member)
      if grant.member and grant.member ~= member then redis.call('ZREM', book.grants_key, grant.member) end
      grant.member, grant.is_new = member, false
    end
  end
  expire(book.grants_key, ttl + 1000000)
  book.lapsed, book.has_expired, book.dropped = 0, false, nil
end

-- Takes what has lapsed from the total, and returns the total; the caller writes the book, or puts it back.
local function lower(book)
  redis.call('DECRBY', book.total_key, integer(book.lapsed))
  return redis.call('GET', book.total_key)
end

local function put_lapsed_back(book) redis.call('INCRBY', book.total_key, integer(book.lapsed)) end

-- Uses up grants for units that were taken of the total; returns what it took of which.
local function spend(book, units, ttl)
  local drawn = use_up(book.grants, units)
  write(book, ttl)
  return drawn
end

-- Returns the grant that expires then; a new one if there is none.
local function grant_at(book, expires, id)
  local place = 1
  for at, grant in ipairs(book.grants) do
    if grant.expires == expires then return grant end
    if grant.expires < expires then place = at + 1 end
  end
  local grant = { expires = expires, left = 0, granted = 0, id = id or '' }
  table.insert(book.grants, place, grant)
  return grant
end

-- Adds what INCRBY takes to a total, the units of `drawn` to their grants, and pays what was owed of them. The caller
-- writes the book. Returns nil; or the error, and nothing has changed.
local function credit(book, amount, drawn)
  local debt = math.max(0, book.lapsed - tonumber(redis.call('GET', book.total_key) or 0))
  local problem = change(book, amount)
  if problem then return problem end
  for _, each in ipairs(drawn) do
    local grant = grant_at(book, each.expires, each.id)
    grant.left, grant.is_new = grant.left + each.units, true
    grant.granted = math.max(grant.granted, grant.left)
  end
  use_up(book.grants, debt)
end

-- Gives units back to a total; those of grants that have expired are lost. The rest is as for credit.
local function give_back(book, units, drawn)
  local living = {}
  for _, each in ipairs(drawn) do
    if each.expires > now then
      living[#living + 1] = each
    else
      units = units - each.units
    end
  end
  return credit(book, integer(units), living)
end

-- Says whether so many grants have room.
local function make_room(book, more)
  if #book.grants + more > KEPT then
    local grants, dropped = {}, {}
    for _, grant in ipairs(book.grants) do
      if grant.left > 0 then
        grants[#grants + 1] = grant
      else
        dropped[#dropped + 1] = grant.member
      end
    end
    book.grants, book.dropped = grants, dropped
  end
  return #book.grants + more <= MOST_GRANTS
end

return {
  credit = credit,
  give_back = give_back,
  lower = lower,
  make_room = make_room,
  member_of = member_of,
  put_lapsed_back = put_lapsed_back,
  read = read,
  spend = spend,
  use_up = use_up,
  write = write,
}
