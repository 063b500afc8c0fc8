-- decide: one plan, any number of limits, all or nothing. The algorithm files stand between the two halves of this one.
--
-- KEYS   the state key of each limit, in the plan's order
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] the mode: check, peek (writes nothing) or refund (gives each cost back, then peeks)
--        then two for each limit:
--        "<algorithm> <capacity> <a> <b> <c> <counted> <group>": whole numbers; counted 1: a refused hit is spent all the
--            same; group 0: its refusal refuses the plan, n: it belongs to the n-th rule that decides for itself alone
--            (a shadow, or one that does not block), whose refusal keeps back its own limits only
--        the cost of the hit, a whole number from 0 up
-- reply  {now, verdict} and four for each limit {ok, remaining, wait, reset}: whole numbers, times in microseconds
--        verdict 1: allowed; 0: refused; -1: stale (the edges of a calendar limit do not hold now; nothing follows)
--        wait: where refused, until the same hit is admitted (-1: never); where admitted, how long to hold it back
local NEVER = -1
local algorithms = {}

local function integer(number) return string.format('%.0f', number) end

-- A key's TTL in milliseconds: one more than its content needs, since keys expire on the millisecond. Where the caller
-- passes the time in (a test), Redis' own clock, by which keys expire, is another one: then an hour more.
local grace = ARGV[1] == '' and 1 or 3600000
local function lifetime(span) return integer(math.ceil(span / 1000) + grace) end

local function expire(key, span) redis.call('PEXPIRE', key, lifetime(span)) end

-- %% algorithms %%

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local mode = ARGV[2]

local limits = {}
for i = 1, #KEYS do
  local name, capacity, a, b, c, counted, group =
    string.match(ARGV[2 * i + 1], '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local limit = {
    key = KEYS[i], cost = tonumber(ARGV[2 * i + 2]), algorithm = algorithms[name], capacity = tonumber(capacity),
    a = tonumber(a), b = tonumber(b), c = tonumber(c), counted = counted == '1', group = tonumber(group),
  }
  if limit.algorithm.stale and limit.algorithm.stale(limit, now) then return { now, -1 } end
  limits[i] = limit
end

if mode == 'refund' then
  for _, limit in ipairs(limits) do limit.algorithm.refund(limit, now) end
end

-- refused[0]: the plan is refused; refused[n]: the n-th rule that decides for itself is.
local refused = {}
for _, limit in ipairs(limits) do
  limit.ok, limit.remaining, limit.wait, limit.reset = limit.algorithm.inspect(limit, now)
  if not limit.ok then refused[limit.group] = true end
end

if mode == 'check' then
  for _, limit in ipairs(limits) do
    if limit.cost > 0 then
      if not refused[0] and not refused[limit.group] then
        limit.remaining, limit.wait, limit.reset = limit.algorithm.spend(limit, now)
      elseif limit.counted and limit.capacity > 0 and refused[limit.group] then
        limit.algorithm.spend(limit, now)
        local _
        _, limit.remaining, limit.wait, limit.reset = limit.algorithm.inspect(limit, now)
        if limit.ok then limit.wait = 0 end
      end
    end
  end
end

local reply = { now, refused[0] and 0 or 1 }
for _, limit in ipairs(limits) do
  reply[#reply + 1] = limit.ok and 1 or 0
  reply[#reply + 1] = limit.remaining
  reply[#reply + 1] = limit.wait
  reply[#reply + 1] = limit.reset
end
return reply
