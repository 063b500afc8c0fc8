-- holds: what was reserved and is not settled yet. A module of decide.
--
-- KEYS   hit.extra: the states of other limits that due holds consumed: under an override that has ended, or before one that is
--          in force
--        hit.holds_key: a sorted set; score = when the hold is restored by itself (microseconds), member = "<token> <cost>",
--          then " <window>=<until>" for each limit: the last part of its key, and when nothing of the hold is in use any more;
--          for a bucket "<until>:<restored>:<refunded>:<alone>:<interval>": how much had been restored and refunded before, when
--          the hold would have flowed back alone, and the microseconds that a unit takes
--        hit.status_key: its field d:<rule> is the score of the first hold
-- ARGV   as decide
-- reply  hold: notes what the hit has just consumed; drop: drops a hold, whatever it consumed; change_all: replaces what
--        holds consumed by what was really used, or lets them last longer; restore_due: restores what is due; credit_due: lets
--        a peek subtract it; foresee: a sliding window without it; missing_limits: the names of limits whose keys restore_due
--        needs; extra_limit: one of those, for its key
local restorers = need('restore')

-- How many due holds one call restores, and how many a peek takes into account.
local RESTORE_BATCH, MAX_FORESEEN = 100, 1000

local ALGORITHM_OF = {
  sw = 'sliding_window', fw = 'fixed_window', cal = 'calendar', tb = 'token_bucket', lb = 'leaky_bucket',
}

-- Returns the live entries without what holds restore. A hold takes its units out of the entry that it consumed; if a
-- refund has taken some of that entry, the rest comes out of the oldest ones.
local function sliding_without(limit, parts)
  local entries = restorers.sliding_window.entries_from(limit, '(' .. integer(now))
  local by_expiry, oldest = {}, 1
  for _, entry in ipairs(entries) do by_expiry[tonumber(entry.score)] = entry end
  limit.total = entries[1] and entries[1].total - entries[1].cost or 0
  for _, part in ipairs(parts) do
    local left, entry = part.stop > now and part.units or 0, by_expiry[part.stop]
    while left > 0 do
      entry = entry or entries[oldest]
      if not entry then break end
      local less = math.min(left, entry.cost)
      entry.cost, left = entry.cost - less, left - less
      if entry == entries[oldest] and entry.cost == 0 then oldest = oldest + 1 end
      entry = nil
    end
  end
  return entries
end

-- Reads how the window would be without due holds, for a peek: returns what is used, and when it expires.
local function foresee(limit)
  local used, expiry = 0, now
  limit.entries = {}
  for _, entry in ipairs(sliding_without(limit, limit.abandoned)) do
    if entry.cost > 0 then
      limit.entries[#limit.entries + 1] = entry
      used, expiry = used + entry.cost, tonumber(entry.score)
    end
  end
  local first = limit.entries[1]
  if first then limit.first_expiry, limit.first_cost = tonumber(first.score), first.cost end
  return used, expiry
end

local function restore_sliding(limit, parts)
  local entries = sliding_without(limit, parts)
  local total = limit.total
  for _, entry in ipairs(entries) do
    total = total + entry.cost
    if total >= 2 * WRAP then total = total - WRAP end
    entry.total = total
  end
  restorers.sliding_window.rewrite(limit, entries)
  redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
end

-- The name of a limit within its rule.
local function window_of(key) return string.match(key, '[^:]+$') end

-- A limit that is not decided: holds only restore to it.
local function extra_limit(key)
  return { key = key, name = ALGORITHM_OF[string.match(window_of(key), '^%l+')], cost = 0, capacity = 0, a = 0, b = 0 }
end

local function restore_to(limit, parts)
  if limit.name == 'sliding_window' then
    for _, part in ipairs(parts) do
      if part.stop > now then return restore_sliding(limit, parts) end
    end
    return
  end
  local restorer = restorers[limit.name]
  for _, part in ipairs(parts) do
    local amount = restorer.still_used(limit, part.units, part.stop, part.words)
    if amount > 0 then restorer.restore(limit, amount) end
  end
end

local function units_of(member) return tonumber(string.match(member, '^%S+ (%d+)')) end

-- Returns the receipts of holds by the name of the limit: {units, stop, words} each. `units`: how many; nil: all.
local function parts_of(members, units)
  local parts = {}
  for _, member in ipairs(members) do
    for window, stop, words in string.gmatch(member, ' ([^ =]+)=(%d+)(%S*)') do
      parts[window] = parts[window] or {}
      table.insert(parts[window], { units = units or units_of(member), stop = tonumber(stop), words = words })
    end
  end
  return parts
end

local function restore(hit, members, units)
  local parts = parts_of(members, units)
  for _, limits in ipairs({ hit, hit.extra }) do
    for _, limit in ipairs(limits) do
      local window = window_of(limit.key)
      if parts[window] then restore_to(limit, parts[window]) end
      parts[window] = nil
    end
  end
end

-- Notes in the status when the first hold is due, and returns that.
local function note_first_due(hit)
  local first = redis.call('ZRANGE', hit.holds_key, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('HSET', hit.status_key, 'd:' .. hit.rule, integer(tonumber(first[2])))
    local ttl = redis.call('PTTL', hit.holds_key)
    if redis.call('PTTL', hit.status_key) < ttl then redis.call('PEXPIRE', hit.status_key, ttl) end
  else
    redis.call('HDEL', hit.status_key, 'd:' .. hit.rule)
  end
  return tonumber(first[2])
end

local function due_of(hit, most)
  return redis.call('ZRANGEBYSCORE', hit.holds_key, '-inf', integer(now), 'LIMIT', 0, most)
end

-- Puts the due holds on the hit. Returns the limits that they consumed, if anything still counts and the hit lacks their
-- keys: their names, joined by commas; '' for none.
local function missing_limits(hit)
  hit.abandoned = due_of(hit, RESTORE_BATCH)
  if not hit.abandoned[1] then return '' end
  local parts, names = parts_of(hit.abandoned), {}
  for _, limits in ipairs({ hit, hit.extra }) do
    for _, limit in ipairs(limits) do parts[window_of(limit.key)] = nil end
  end
  for window, some in pairs(parts) do
    local stop = 0
    for _, part in ipairs(some) do stop = math.max(stop, part.stop) end
    if stop > now and ALGORITHM_OF[string.match(window, '^%l+')] then names[#names + 1] = window end
  end
  return table.concat(names, ',')
end

-- Puts on the hit whether more are due. Then the caller asks again, so that no call takes long.
local function restore_due(hit)
  local due = hit.abandoned
  if due[1] then
    -- Drop first: a full server lets a script drop, and then write. So nothing is restored by half.
    redis.call('ZREM', hit.holds_key, unpack(due))
    restore(hit, due)
  end
  -- The TTL of the holds may end before anybody notices that they are due.
  if due[1] or (hit.due and hit.due <= now) then
    local first = note_first_due(hit)
    hit.more_due = first and first <= now
  end
end

-- Notes what would be restored, for a peek: the algorithm's `peek` subtracts it.
local function credit_due(hit)
  local parts = parts_of(due_of(hit, MAX_FORESEEN))
  for _, limit in ipairs(hit) do
    local some = parts[window_of(limit.key)]
    if some and limit.name == 'sliding_window' then
      limit.abandoned = some
    else
      for _, part in ipairs(some or {}) do
        local amount = restorers[limit.name].still_used(limit, part.units, part.stop, part.words)
        limit.credit = (limit.credit or 0) + amount
      end
    end
  end
end

local function hold(hit)
  local ttl = hit.ttl
  local member = hit.token .. ' ' .. integer(hit[1].cost)
  local span = ttl
  for _, limit in ipairs(hit) do
    member = member .. ' ' .. window_of(limit.key) .. '=' .. integer(now + limit.reset)
    local receipt = restorers[limit.name].receipt
    if receipt then member = member .. receipt(limit) end
    span = math.max(span, limit.reset)
  end
  redis.call('ZADD', hit.holds_key, integer(now + ttl), member)
  -- The key lives on after the hold is due, while there is anything to restore.
  keep(hit.holds_key, span)
  note_first_due(hit)
  keep(hit.status_key, span)
  need('flag')(hit, HELD, now + ttl)
end

-- Returns the member of a hold, or nil; and when it is due. That is later than its caller knows if the reply to a renewal was lost.
local function find(hit, token, due)
  for _, latest in ipairs({ due, '+inf' }) do
    local found = redis.call('ZRANGEBYSCORE', hit.holds_key, due, latest, 'WITHSCORES', 'LIMIT', 0, MAX_FORESEEN)
    for at = 1, #found, 2 do
      if string.sub(found[at], 1, #token + 1) == token .. ' ' then return found[at], tonumber(found[at + 1]) end
    end
  end
  return nil, tonumber(due)
end

-- Drops a hold; returns what `find` does.
local function drop(hit, token, due)
  local member, stop = find(hit, token, due)
  if member then
    redis.call('ZREM', hit.holds_key, member)
    note_first_due(hit)
  end
  return member, stop
end

local changes = {}

-- If the hold is late, what it consumed was restored, or is restored now, and what was really used is consumed now.
function changes.settle(hit, actual, due, token)
  local member, stop = drop(hit, token, due)
  local held, is_late = 0, stop <= now
  if is_late then need('flag')(hit, SETTLED_LATE, tonumber(due)) end
  if member then
    local units = units_of(member)
    if is_late then restore(hit, { member }, units) else held = units end
    if actual < held then restore(hit, { member }, held - actual) end
  end
  -- A hold that is gone before it was due was settled, or reset.
  if member or is_late then
    for _, limit in ipairs(hit) do
      if actual > held and limit.capacity > 0 then
        local cost = limit.cost
        limit.cost = actual - held
        limit.algorithm.peek(limit)
        limit.algorithm.consume(limit, true)
        limit.cost = cost
      end
    end
  end
end

-- Lets a hold last longer, never shorter. One that is due already is not renewed: others may have been promised what it holds.
function changes.renew(hit, ttl, due, token)
  local member, stop = find(hit, token, due)
  if not member or stop <= now then return end
  stop = math.max(stop, now + ttl)
  redis.call('ZADD', hit.holds_key, integer(stop), member)
  keep(hit.holds_key, stop - now)
  note_first_due(hit)
  need('flag')(hit, HELD, stop)
end

local function change_all(hits)
  local number = 0
  for word in string.gmatch(mode_arguments, '%S+') do
    number = number + 1
    local amount, due, token = string.match(word, '^(%d+):(%d+):(%S+)$')
    if amount then changes[mode](hits[number], tonumber(amount), due, token) end
    credit_due(hits[number])
  end
end

return {
  extra_limit = extra_limit, missing_limits = missing_limits, restore_due = restore_due, credit_due = credit_due, hold = hold,
  drop = drop, change_all = change_all, foresee = foresee,
}
