-- open_grants: opens the grants of a counter: those that live, the first to expire first, and how many units have
-- expired: they are still in the total. It follows counter_common. Most counters have no grants, so the functions for them are
-- made when they are first needed: make_grants, or another part that follows it, defines make_grants.
--
-- KEYS   total_key, grants_key: see grants
-- ARGV   those of the script or module after it
-- reply  that of the script or module after it

local made_grants, make_grants

local function need_grants()
  made_grants = made_grants or make_grants()
  return made_grants
end

-- Returns the grants; or nil, and the error if a key holds something else.
local function open_grants(total_key, grants_key)
  local found = redis.pcall('ZRANGE', grants_key, 0, -1)
  if failed(found) then return nil, found end
  local grants = { total_key = total_key, grants_key = grants_key, live = found, expired = 0 }
  if not found[1] then return grants end
  grants.had_any = true
  local problem = need_grants().read(grants)
  if problem then return nil, problem end
  return grants
end

-- Adds what INCRBY takes to a total, without what has expired. Returns nil; or the error, and nothing has changed.
local function change(grants, amount)
  if grants.expired > 0 then need_grants().lower(grants) end
  local reply = redis.pcall('INCRBY', grants.total_key, amount)
  if not failed(reply) then return nil end
  if grants.expired > 0 then need_grants().put_expired_back(grants) end
  return reply
end
