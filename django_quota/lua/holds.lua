-- holds: what was reserved and is not settled yet. A part of decide.
--
-- KEYS   hit.holds_key: a sorted set; score = when the hold is given back by itself (microseconds), member =
--          "<token> <cost>", then " <window>=<until>" for each limit: the last part of its key, and the moment from which on
--          nothing of what the hold spent there is used any more; of a bucket
--          "<until>:<given>:<refunded>:<alone>:<interval>": how much had been given back and refunded before, when the hold
--          would have flowed back if it had been alone, and the microseconds that a unit takes
--        hit.standing_key: its field d:<rule> is the score of the first
-- ARGV   as decide
-- reply  hold: notes what the hit has just spent; settle: makes it what was really used; give_back_due: drops what is due

-- The name of a limit within its rule.
local function window_of(limit) return string.match(limit.key, '[^:]+$') end

-- How much of a hold's units still counts in a limit: units, of a bucket microseconds.
local function still_used(member, limit, units)
  local _, last = string.find(member, ' ' .. window_of(limit) .. '=', 1, true)
  if not last then return 0 end -- an override has put other limits in the place of those that the hold spent of
  local stop, words = string.match(member, '^(%d+)(%S*)', last + 1)
  stop = tonumber(stop)
  if limit.algorithm.still_used then return limit.algorithm.still_used(limit, units, now, stop, words) end
  return stop > now and units or 0
end

local function give_back_to(limit, amount)
  if limit.algorithm.give_back then
    limit.algorithm.give_back(limit, amount, now)
  else
    local cost = limit.cost
    limit.cost = amount
    local done, problem = pcall(limit.algorithm.refund, limit, now)
    limit.cost = cost -- also where the server takes no writes, and the hit is decided all the same
    if not done then error(problem, 0) end
  end
end

local function give_back(hit, member, units)
  for _, limit in ipairs(hit) do
    local amount = still_used(member, limit, units)
    if amount > 0 then give_back_to(limit, amount) end
  end
end

local function note_first_due(hit)
  local first = redis.call('ZRANGE', hit.holds_key, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('HSET', hit.standing_key, 'd:' .. hit.rule, integer(tonumber(first[2])))
    local ttl = redis.call('PTTL', hit.holds_key)
    if redis.call('PTTL', hit.standing_key) < ttl then redis.call('PEXPIRE', hit.standing_key, ttl) end
  else
    redis.call('HDEL', hit.standing_key, 'd:' .. hit.rule)
  end
end

-- A hundred at a time: the next call goes on, since the first of the others is due as well.
local function due_of(hit)
  return redis.call('ZRANGEBYSCORE', hit.holds_key, '-inf', integer(now), 'LIMIT', 0, 100)
end

local function units_of(member) return tonumber(string.match(member, '^%S+ (%d+)')) end

local function give_back_due(hit)
  local due = due_of(hit)
  for _, member in ipairs(due) do
    -- Dropping comes first: a full server lets a script drop, and then write. So nothing is given back by half.
    redis.call('ZREM', hit.holds_key, member)
    give_back(hit, member, units_of(member))
  end
  -- The holds may be gone by their own TTL, before anybody noticed that they were due.
  if due[1] or (hit.due and hit.due <= now) then note_first_due(hit) end
end

-- What would be given back, for a peek, which writes nothing: `inspect` takes it off.
local function credit_due(hit)
  for _, member in ipairs(due_of(hit)) do
    for _, limit in ipairs(hit) do
      limit.credit = limit.credit + still_used(member, limit, units_of(member))
    end
  end
end

local function hold(hit)
  local token, ttl = string.match(mode_arguments, '^(%S+) (%d+)$')
  ttl = tonumber(ttl)
  local member = token .. ' ' .. integer(hit[1].cost)
  local span = ttl
  for _, limit in ipairs(hit) do
    member = member .. ' ' .. window_of(limit) .. '=' .. integer(now + limit.reset)
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

local function settle(hit)
  local actual, due, token = string.match(mode_arguments, '^(%d+) (%d+) (%S+)$')
  give_back_due(hit)
  local member = held_under(hit, token, due)
  if not member then return end -- settled before, or given back
  redis.call('ZREM', hit.holds_key, member)
  note_first_due(hit)
  local held = units_of(member)
  actual = tonumber(actual)
  if actual < held then give_back(hit, member, held - actual) end
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
