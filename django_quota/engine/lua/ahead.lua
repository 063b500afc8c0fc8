-- ahead: units that processes have taken ahead of their hits. A module of decide.
--
-- KEYS   for each limit of the hit a sorted set of shares: member = "<id>:<units>:<tail>", score = until when the units
--        count. tail: for how long after the lease, if they then count as hit at its end (buckets); else 0
-- ARGV   as decide
-- reply  begin: nothing; it takes back the share of the caller, and makes the limits count what is out. take: nothing;
--        it lets the caller take a share, and adds flags
--
-- What a process spends, it spends out of units that count since it took them. So what is used and what is out are
-- together never more than the limit, and no window admits more. A process that returns says what it has spent; a
-- killed one does not, and its units count until the last of them, if it was spent, no longer would.

-- Returns the live shares, by the end of their leases, and the caller's own, which is not among them.
local function shares_of(limit, id)
  local found = redis.call('ZRANGEBYSCORE', limit.ahead_key, '(' .. integer(now), '+inf', 'WITHSCORES')
  local shares, own = {}, nil
  for i = 1, #found, 2 do
    local name, units, tail = string.match(found[i], '^([^:]+):(%d+):(%d+)$')
    local stop = found[i + 1] + 0
    local share = { member = found[i], units = units + 0, stop = stop, ends = stop - tail }
    if name == id then own = share else shares[#shares + 1] = share end
  end
  table.sort(shares, function(one, other) return one.ends < other.ends end)
  return shares, own
end

-- Returns the moment at which a bucket is full again, if these shares are hit at the ends of their leases.
local function filled_at(limit, tat, shares)
  for _, share in ipairs(shares) do tat = math.max(tat, share.ends) + share.units * limit.a end
  return tat
end

-- Counts what a bucket's shares whose lease has ended have not returned.
local function charge(limit, due)
  limit.backlog = math.max(0, filled_at(limit, limit.tat, due) - now)
  if limit.backlog > 0 then need('token_bucket').write(limit, now) end
  for _, share in ipairs(due) do redis.call('ZREM', limit.ahead_key, share.member) end
end

local function return_share(limit, share, spent)
  spent = math.min(spent, share.units)
  if spent > 0 and limit.capacity > 0 then -- first, since a full server may refuse it
    local cost = limit.cost
    limit.cost = spent
    limit.own.peek(limit)
    limit.own.consume(limit, true)
    limit.cost = cost
  end
  redis.call('ZREM', limit.ahead_key, share.member)
end

-- Returns how long until a hit of this cost has room, if each share is hit at the end of its lease.
local function wait_of_bucket(limit, cost)
  local tat, out, number = now + limit.backlog, limit.out, 0
  while out + cost > limit.capacity do
    number = number + 1
    local share = limit.shares[number]
    tat, out = filled_at(limit, tat, { share }), out - share.units
  end
  return tat + (out + cost - limit.capacity) * limit.a - now
end

-- Returns how long until a hit of this cost has room, if nobody returns anything sooner.
local function wait_for(limit, cost)
  if limit.name == 'token_bucket' then return wait_of_bucket(limit, cost) end
  local used = limit.capacity - limit.left
  local missing, moment, best = used + limit.out + cost - limit.capacity, now, nil
  for i = 0, #limit.shares do
    if i > 0 then
      moment, missing = limit.shares[i].stop, missing - limit.shares[i].units
      if best and moment - now >= best then break end
    end
    if missing <= used then
      local wait = moment - now
      if missing > 0 then
        local own = limit.name == 'sliding_window' and need('sliding_wait')(limit, missing) or limit.stop - now
        wait = math.max(wait, own)
      end
      if not best or wait < best then best = wait end
    end
  end
  return best
end

-- Returns how long until nothing is used and nothing is out.
local function reset_of(limit, reset)
  if limit.name == 'token_bucket' then return filled_at(limit, now + limit.backlog, limit.shares) - now end
  for _, share in ipairs(limit.shares) do reset = math.max(reset, share.stop - now) end
  return reset
end

-- The limit's own algorithm, with what is out.
local algorithm = {
  peek = function(limit)
    local capacity, cost = limit.capacity, limit.cost
    local _, left, _, reset = limit.own.peek(limit)
    if limit.due then
      limit.backlog = math.max(0, filled_at(limit, limit.tat, limit.due) - now)
      left = math.floor((capacity * limit.a - limit.backlog) / limit.a)
    end
    limit.left = left
    local remaining = left - limit.out
    local more = NEVER
    if capacity > 0 and remaining < capacity then more = wait_for(limit, math.max(0, remaining) + 1) end
    reset = reset_of(limit, reset)
    if capacity == 0 or cost > capacity then return false, remaining, NEVER, reset, more end
    if cost <= remaining then return true, remaining, 0, reset, more end
    return false, remaining, wait_for(limit, cost), reset, more
  end,

  consume = function(limit, over)
    local left, delay, reset, more = limit.own.consume(limit, over)
    local first = limit.shares[1]
    if first and limit.name ~= 'token_bucket' then more = math.min(more, first.stop - now) end
    return left - limit.out, delay, reset_of(limit, reset), more
  end,

  follow_clock = function(limit)
    if limit.own.follow_clock then limit.own.follow_clock(limit) end
  end,
}

local function begin_limit(limit, id, spent)
  local writes = mode ~= 'peek'
  limit.own, limit.algorithm = limit.algorithm, algorithm
  local shares, own = shares_of(limit, writes and id or '')
  if limit.name == 'fixed_window' then
    -- The window is still open, though a reset has dropped its count: units of it are out.
    limit.own.read(limit)
    local last = shares[#shares] and shares[#shares].stop or 0
    if own then last = math.max(last, own.stop) end
    if limit.count == 0 and last > now then limit.a = last - now end
  elseif limit.name == 'token_bucket' then
    local due = {}
    while shares[1] and shares[1].ends <= now do due[#due + 1] = table.remove(shares, 1) end
    if due[1] and writes then
      limit.own.read(limit)
      charge(limit, due)
    elseif due[1] then
      limit.due = due
    end
  end
  if own then return_share(limit, own, spent) end
  limit.out, limit.shares = 0, shares
  for _, share in ipairs(shares) do limit.out = limit.out + share.units end
end

return {
  begin = function(hit)
    hit.spent = ARGV[hit.ahead + 2] + 0
    for _, limit in ipairs(hit) do begin_limit(limit, ARGV[hit.ahead + 1], hit.spent) end
  end,

  take = function(hit)
    local id, wish, divisor = ARGV[hit.ahead + 3], ARGV[hit.ahead + 4] + 0, ARGV[hit.ahead + 5] + 0
    local units, lease = wish, ARGV[hit.ahead + 6] + 0
    for _, limit in ipairs(hit) do
      units = math.min(units, math.floor(limit.remaining / divisor))
      if limit.stop then lease = math.min(lease, limit.stop - now) end
    end
    if units < 1 then return end
    for _, limit in ipairs(hit) do
      local tail = limit.name == 'token_bucket' and limit.capacity * limit.a or 0
      local stop = limit.stop or now + lease + (tail > 0 and tail or limit.a)
      redis.call('ZADD', limit.ahead_key, integer(stop), id .. ':' .. integer(units) .. ':' .. integer(tail))
      redis.call('ZREMRANGEBYSCORE', limit.ahead_key, '-inf', integer(now))
      keep(limit.ahead_key, stop - now)
    end
    need('flag')(hit, GRANTED, units)
    need('flag')(hit, LEASED, lease)
  end,
}
