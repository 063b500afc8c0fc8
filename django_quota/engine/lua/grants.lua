-- grants: units of a counter that expire. Spending uses first what expires first. It follows counter_common.
--
-- KEYS   those of the script or module after it; total_key: the total of a counter, with these units; grants_key: a
--        sorted set of "<left>:<granted>:<expires>:<id>", scored by when the grant expires, which no other grant of
--        the counter does in the same microsecond
-- ARGV   those of the script or module after it
-- reply  that of the script or module after it
--
-- A book is what is open of a counter: the grants that live, the first to expire first; how many units have lapsed: the
-- total still has them; and whether there was any grant.

-- Lowers what is left of grants; returns what it took of which.
local function use_up(grants, units)
  local drawn = {}
  for _, grant in ipairs(grants) do
    if units <= 0 then break end
    local part = math.min(grant.left, units)
    grant.left, units = grant.left - part, units - part
    if part > 0 then drawn[#drawn + 1] = { expires = grant.expires, units = part, id = grant.id } end
  end
  return drawn
end

local function member_of(grant)
  return integer(grant.left) .. ':' .. integer(grant.granted) .. ':' .. integer(grant.expires) .. ':' .. grant.id
end

-- Opens the book of a counter; returns nil and the error if a key holds something else.
local function open(total_key, grants_key)
  local found = redis.pcall('ZRANGE', grants_key, 0, -1)
  if failed(found) then return nil, found end
  local book = { total_key = total_key, grants_key = grants_key, grants = found, lapsed = 0, had_any = false }
  if not found[1] then return book end
  local grants, live, sum = {}, {}, 0
  for at, member in ipairs(found) do
    local left, granted, expires, id = string.match(member, '^(%d+):(%d+):(%d+):([^:]*)$')
    if not left then return nil, { err = 'WRONGTYPE not the grants of a counter' } end
    sum = sum + left
    grants[at] = {
      member = member,
      expires = tonumber(expires),
      left = tonumber(left),
      granted = tonumber(granted),
      id = id,
    }
  end
  -- The total may have been lost, or changed by somebody else.
  use_up(grants, sum - math.max(0, tonumber(redis.call('GET', total_key) or 0)))
  for _, grant in ipairs(grants) do
    if grant.expires > now then
      live[#live + 1] = grant
    else
      book.lapsed = book.lapsed + grant.left
    end
  end
  book.grants, book.had_any = live, true
  return book
end

-- Writes what is left of grants. `ttl`: how long the total lives from now, in microseconds; it goes first.
local function write(book, ttl)
  if not book.had_any and not book.grants[1] then return end
  redis.call('ZREMRANGEBYSCORE', book.grants_key, '-inf', integer(now))
  for _, member in ipairs(book.dropped or {}) do redis.call('ZREM', book.grants_key, member) end
  for _, grant in ipairs(book.grants) do
    local member = member_of(grant)
    if member ~= grant.member then
      -- Add before removing: an empty set is gone, and its TTL with it.
      redis.call('ZADD', book.grants_key, integer(grant.expires), member)
      if grant.member then redis.call('ZREM', book.grants_key, grant.member) end
      grant.member = member
    end
  end
  expire(book.grants_key, ttl + 1000000)
  book.lapsed = 0
end

-- Takes what has lapsed from the total; the caller writes the book, or puts it back.
local function lower(book)
  if book.lapsed > 0 then redis.call('DECRBY', book.total_key, integer(book.lapsed)) end
end

local function put_lapsed_back(book)
  if book.lapsed > 0 then redis.call('INCRBY', book.total_key, integer(book.lapsed)) end
end

-- Adds to a total what INCRBY takes, without what has lapsed. Returns nil; or the error, and nothing has changed.
local function change(book, amount)
  lower(book)
  local reply = redis.pcall('INCRBY', book.total_key, amount)
  if not failed(reply) then return nil end
  put_lapsed_back(book)
  return reply
end

-- What a total without its lapsed units is below zero, or 0.
local function owed(book) return math.max(0, book.lapsed - tonumber(redis.call('GET', book.total_key) or 0)) end

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
  local debt = owed(book)
  local problem = change(book, amount)
  if problem then return problem end
  for _, each in ipairs(drawn) do
    local grant = grant_at(book, each.expires, each.id)
    grant.left = grant.left + each.units
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

local function read_drawn(text)
  local drawn = {}
  for expires, units in string.gmatch(text, '(%d+)-(%d+)') do
    drawn[#drawn + 1] = { expires = tonumber(expires), units = tonumber(units) }
  end
  return drawn
end

-- A counter keeps grants that are used up, so that what comes back has its id; not if it has more than KEPT of them.
local KEPT, MOST_GRANTS = 100, 1000

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
