-- near: reports that hits made a limit reach a share of `warn_at`. A module of decide.
--
-- KEYS   hit.status_key: see subject_status
-- ARGV   as decide
-- reply  a function (hit, units, lowers); it replies nothing, and adds a flag

local USED_UP = 1000 -- the share of a limit that has nothing left

-- Returns the highest share that the use of a limit has reached (0: none), the highest that the last `units` reached,
-- and the limit. A limit so small that the next hit fills it is not near, only used up.
local function shares_of(hit, units)
  local highest, share, near = 0, 0, nil
  for word in string.gmatch(hit.shares or integer(hit.warn), '%d+') do -- they rise
    local each = tonumber(word)
    for _, limit in ipairs(hit) do
      local capacity = limit.capacity
      local threshold = capacity * each
      local used = capacity - limit.remaining - (limit.out or 0) -- units that are out are not used yet
      local has_reached = capacity > 0 and used * 1000 >= threshold
      if has_reached and (each == USED_UP or threshold <= (capacity - 1) * 1000) then
        highest = each
        if share < each and (used - units) * 1000 < threshold then
          share = each
          near = limit
        end
      end
    end
  end
  return highest, share, near
end

-- `lowers`: units were given back. A share above the current use may be reported again.
return function(hit, units, lowers)
  local highest, share, limit = shares_of(hit, units)
  local field = 'w:' .. hit.rule
  local stop, reported = string.match(redis.call('HGET', hit.status_key, field) or '', '^(%d+) (%d+)$')
  reported = stop and tonumber(stop) > now and tonumber(reported) or 0
  if lowers and reported > highest then
    reported = highest
    redis.call('HSET', hit.status_key, field, stop .. ' ' .. integer(reported))
  end
  if emits and share > reported then
    local events = need('events')
    local span = math.min(math.max(limit.reset, SECOND), DAY)
    events.note(hit, field, integer(now + span) .. ' ' .. integer(share), span)
    need('flag')(hit, NEAR_EMITTED, share)
  end
end
