-- book: opens the book of a counter: its grants that live, the first to expire first, and how many units have lapsed:
-- they are still in the total. It follows counter_common. Most counters have no grants, so the functions for them are
-- made when they are first needed: grants_of_book, or another part that follows it, defines make_grants.
--
-- KEYS   total_key, grants_key: see grants
-- ARGV   those of the script or module after it
-- reply  that of the script or module after it

local made_grants, make_grants

local function need_grants()
  made_grants = made_grants or make_grants()
  return made_grants
end

-- Returns the book; or nil, and the error if a key holds something else.
local function open(total_key, grants_key)
  local found = redis.pcall('ZRANGE', grants_key, 0, -1)
  if failed(found) then return nil, found end
  local book = { total_key = total_key, grants_key = grants_key, grants = found, lapsed = 0 }
  if not found[1] then return book end
  book.had_any = true
  local problem = need_grants().read(book)
  if problem then return nil, problem end
  return book
end

-- Adds what INCRBY takes to a total, without what has lapsed. Returns nil; or the error, and nothing has changed.
local function change(book, amount)
  if book.lapsed > 0 then need_grants().lower(book) end
  local reply = redis.pcall('INCRBY', book.total_key, amount)
  if not failed(reply) then return nil end
  if book.lapsed > 0 then need_grants().put_lapsed_back(book) end
  return reply
end
