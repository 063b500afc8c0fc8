-- near: reports that hits made a limit reach a share of `warn_at`. A module of decide.
--
-- KEYS   hit.status_key: see subject_status
-- ARGV   as decide
-- reply  a function (hit, units, why); it replies nothing, and adds a flag

local USED_UP = 1000 -- the share of a limit that has nothing left

-- Returns the highest share that the use of a limit has reached (0: none), and the highest that the last `units`
-- reached. A limit so small that the next hit fills it is not near, only used up.
local function shares_of(hit, limit, used, units)
  local highest, share = 0, 0
  for word in string.gmatch(hit.shares or integer(math.abs(hit.warn)), '%d+') do -- they rise
    local each = tonumber(word)
    local threshold = limit.capacity * each
    local has_reached = limit.capacity > 0 and used * 1000 >= threshold
    if has_reached and (each == USED_UP or threshold <= (limit.capacity - 1) * 1000) then
      highest = each
      if (used - units) * 1000 < threshold then share = each end
    end
  end
  return highest, share
end

-- `why` is "lowers": units were given back, so a share above the current use may be reported again; or "refused": the
-- units do not fit, so each limit that refuses them is judged as if it had taken them. Without it, they were taken.
return function(hit, units, why)
  local field = 'w:' .. hit.rule
  local next_number = string.gmatch(redis.call('HGET', hit.status_key, field) or '', '%d+')
  local words, has_changed, span, near = {}, false, 0, nil
  for i, limit in ipairs(hit) do
    local stop = tonumber(next_number() or 0)
    local reported = tonumber(next_number() or 0)
    local capacity = tonumber(next_number() or 0)
    if stop <= now or capacity ~= limit.capacity then stop, reported = now, 0 end
    local used = limit.capacity - limit.remaining - (limit.out or 0) -- units that are out are not used yet
    if why == 'refused' then used = used + units end
    if why ~= 'refused' or (limit.refused and units <= limit.capacity) then
      local highest, share = shares_of(hit, limit, used, units)
      if why == 'lowers' and reported > highest then reported, has_changed = highest, true end
      if emits and share > reported then
        reported, stop, has_changed = share, now + math.max(limit.reset, SECOND), true
        near = math.max(near or 0, share)
      end
    end
    span = math.max(span, stop - now)
    words[i] = integer(stop) .. ' ' .. integer(reported) .. ' ' .. integer(limit.capacity)
  end
  if not has_changed then return end
  need('events').note(hit, field, table.concat(words, ' '), span)
  if near then need('flag')(hit, NEAR_EMITTED, near) end
end
