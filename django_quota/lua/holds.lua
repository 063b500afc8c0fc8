-- holds: what was reserved and is not settled yet. A part of decide.
--
-- KEYS   hit.beside: the states of further limits that due holds have spent of: under an override that is over by now, or
--          before one that is in force
--        hit.holds_key: a sorted set; score = when the hold is given back by itself (microseconds), member =
--          "<token> <cost>", then " <window>=<until>" for each limit: the last part of its key, and the moment from which on
--          nothing of what the hold spent there is used any more; of a bucket
--          "<until>:<given>:<refunded>:<alone>:<interval>": how much had been given back and refunded before, when the hold
--          would have flowed back if it had been alone, and the microseconds that a unit takes
--        hit.standing_key: its field d:<rule> is the score of the first
-- ARGV   as decide
-- reply  hold: notes what the hit has just spent; settle: makes it what was really used; give_back_due: drops what is due;
--        lacking: the names of limits whose keys it needs for that

local limit_beside, lacking, give_back_due, credit_due, hold, settle

-- For hits that bring holds only: functions are made anew at each call, and that takes time.
local function make_holds()
  -- How many due holds one call gives back, and how many a peek foresees.
  local HOLDS_AT_ONCE, HOLDS_FORESEEN = 100, 1000

  local ALGORITHM_OF = {
    sw = 'sliding_window', fw = 'fixed_window', cal = 'calendar', tb = 'token_bucket', lb = 'leaky_bucket',
  }

  -- Returns the live entries without what holds give back: each takes its units out of the entry that it was spent in. What
  -- a refund has taken of that entry comes out of the oldest ones.
  local function sliding_without(limit, parts, now)
    local found = redis.call('ZRANGEBYSCORE', limit.key, '(' .. integer(now), '+inf', 'WITHSCORES')
    local entries, by_expiry, oldest = {}, {}, 1
    for at = 1, #found, 2 do
      local total, cost = string.match(found[at], '^(%d+):(%d+)$')
      local entry = { member = found[at], score = found[at + 1], total = tonumber(total), cost = tonumber(cost) }
      entries[#entries + 1] = entry
      by_expiry[tonumber(entry.score)] = entry
    end
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

  -- Reads how the window would be if due holds were given back: for a peek, which writes nothing.
  function algorithms.sliding_window.foresee(limit, now)
    limit.entries = {}
    for _, entry in ipairs(sliding_without(limit, limit.abandoned, now)) do
      if entry.cost > 0 then
        limit.entries[#limit.entries + 1] = entry
        limit.used, limit.expiry = limit.used + entry.cost, tonumber(entry.score)
      end
    end
    local first = limit.entries[1]
    if first then limit.first_expiry, limit.first_cost = tonumber(first.score), first.cost end
  end

  function algorithms.sliding_window.give_back_all(limit, parts, now)
    local entries = sliding_without(limit, parts, now)
    local added, kept, removed, total = {}, {}, {}, limit.total
    for _, entry in ipairs(entries) do
      if entry.cost > 0 then
        total = (total + entry.cost) % SLIDING_WRAP
        local member = integer(total) .. ':' .. integer(entry.cost)
        added[#added + 1], added[#added + 2] = entry.score, member
        kept[member] = true
      end
    end
    if not added[1] then return redis.call('DEL', limit.key) end
    -- Before the old ones go: a set that is emptied is gone, and its TTL with it.
    redis.call('ZADD', limit.key, unpack(added))
    for _, entry in ipairs(entries) do
      if not kept[entry.member] then removed[#removed + 1] = entry.member end
    end
    if removed[1] then redis.call('ZREM', limit.key, unpack(removed)) end
    redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
  end

  -- The name of a limit within its rule.
  local function window_of(key) return string.match(key, '[^:]+$') end

  -- A limit of which nothing is asked, but that holds give back to it.
  function limit_beside(key)
    local algorithm = algorithms[ALGORITHM_OF[string.match(window_of(key), '^%l+')]]
    return { key = key, algorithm = algorithm, cost = 0, credit = 0, capacity = 0, a = 0, b = 0 }
  end

  -- How much of a hold's units still counts in a limit: units, of a bucket microseconds.
  local function still_used(limit, part)
    if limit.algorithm.still_used then return limit.algorithm.still_used(limit, part.units, now, part.stop, part.words) end
    return part.stop > now and part.units or 0
  end

  local function give_back_to(limit, parts)
    if limit.algorithm.give_back_all then return limit.algorithm.give_back_all(limit, parts, now) end
    for _, part in ipairs(parts) do
      local amount = still_used(limit, part)
      if amount > 0 and limit.algorithm.give_back then
        limit.algorithm.give_back(limit, amount, now)
      elseif amount > 0 then
        local cost = limit.cost
        limit.cost = amount
        local done, problem = pcall(limit.algorithm.refund, limit, now)
        limit.cost = cost -- also where the server takes no writes, and the hit is decided all the same
        if not done then error(problem, 0) end
      end
    end
  end

  local function units_of(member) return tonumber(string.match(member, '^%S+ (%d+)')) end

  -- Returns what holds have noted, by the name of the limit: {units, stop, words} each. `units`: how many; nil: all of them.
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

  local function give_back(hit, members, units)
    local parts = parts_of(members, units)
    for _, limits in ipairs({ hit, hit.beside }) do
      for _, limit in ipairs(limits) do
        local window = window_of(limit.key)
        if parts[window] then give_back_to(limit, parts[window]) end
        parts[window] = nil
      end
    end
  end

  -- Returns when the first is due.
  local function note_first_due(hit)
    local first = redis.call('ZRANGE', hit.holds_key, 0, 0, 'WITHSCORES')
    if first[1] then
      redis.call('HSET', hit.standing_key, 'd:' .. hit.rule, integer(tonumber(first[2])))
      local ttl = redis.call('PTTL', hit.holds_key)
      if redis.call('PTTL', hit.standing_key) < ttl then redis.call('PEXPIRE', hit.standing_key, ttl) end
    else
      redis.call('HDEL', hit.standing_key, 'd:' .. hit.rule)
    end
    return tonumber(first[2])
  end

  local function due_of(hit, most)
    return redis.call('ZRANGEBYSCORE', hit.holds_key, '-inf', integer(now), 'LIMIT', 0, most)
  end

  -- Puts what is due on the hit. Returns the names of the limits that this was spent of, where anything of it still counts
  -- and the hit does not bring their keys: joined by commas; '' for none.
  function lacking(hit)
    hit.abandoned = due_of(hit, HOLDS_AT_ONCE)
    if not hit.abandoned[1] then return '' end
    local parts, names = parts_of(hit.abandoned), {}
    for _, limits in ipairs({ hit, hit.beside }) do
      for _, limit in ipairs(limits) do parts[window_of(limit.key)] = nil end
    end
    for window, some in pairs(parts) do
      local stop = 0
      for _, part in ipairs(some) do stop = math.max(stop, part.stop) end
      if stop > now and ALGORITHM_OF[string.match(window, '^%l+')] then names[#names + 1] = window end
    end
    return table.concat(names, ',')
  end

  -- Puts on the hit whether there are more: the caller asks again then, so that no call holds the server up for long.
  function give_back_due(hit)
    local due = hit.abandoned
    if due[1] then
      -- Dropping comes first: a full server lets a script drop, and then write. So nothing is given back by half.
      redis.call('ZREM', hit.holds_key, unpack(due))
      give_back(hit, due)
    end
    -- The holds may be gone by their own TTL, before anybody noticed that they were due.
    if due[1] or (hit.due and hit.due <= now) then
      local first = note_first_due(hit)
      hit.more_due = first and first <= now
    end
  end

  -- What would be given back, for a peek, which writes nothing: `inspect` takes it off.
  function credit_due(hit)
    local parts = parts_of(due_of(hit, HOLDS_FORESEEN))
    for _, limit in ipairs(hit) do
      local some = parts[window_of(limit.key)]
      if some and limit.algorithm.give_back_all then
        limit.abandoned = some
      else
        for _, part in ipairs(some or {}) do limit.credit = limit.credit + still_used(limit, part) end
      end
    end
  end

  function hold(hit)
    local token, ttl = string.match(mode_arguments, '^(%S+) (%d+)$')
    ttl = tonumber(ttl)
    local member = token .. ' ' .. integer(hit[1].cost)
    local span = ttl
    for _, limit in ipairs(hit) do
      member = member .. ' ' .. window_of(limit.key) .. '=' .. integer(now + limit.reset)
      if limit.algorithm.mark then member = member .. limit.algorithm.mark(limit, now) end
      span = math.max(span, limit.reset)
    end
    redis.call('ZADD', hit.holds_key, integer(now + ttl), member)
    -- It outlives the moment at which it is due, for as long as there is anything to give back.
    keep(hit.holds_key, span)
    note_first_due(hit)
    keep(hit.standing_key, span)
  end

  local function held_under(hit, token, due)
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', hit.holds_key, due, due)) do
      if string.sub(member, 1, #token + 1) == token .. ' ' then return member end
    end
  end

  -- Puts on the hit, where it is late, when the hold was due: what it had spent has been given back, or is now, and what was
  -- really used is spent now.
  function settle(hit)
    local actual, due, token = string.match(mode_arguments, '^(%d+) (%d+) (%S+)$')
    local member, held = held_under(hit, token, due), 0
    actual = tonumber(actual)
    if tonumber(due) <= now then hit.late = tonumber(due) end
    if member then
      redis.call('ZREM', hit.holds_key, member)
      note_first_due(hit)
      local units = units_of(member)
      if hit.late then give_back(hit, { member }, units) else held = units end
      if actual < held then give_back(hit, { member }, held - actual) end
    end
    -- One that is gone before it was due was settled, or forgotten by a reset.
    if member or hit.late then
      for _, limit in ipairs(hit) do
        if actual > held and limit.capacity > 0 then
          local cost = limit.cost
          limit.cost = actual - held
          limit.algorithm.inspect(limit, now)
          limit.algorithm.spend(limit, now, true)
          limit.cost = cost
        end
      end
    end
    credit_due(hit)
  end
end
