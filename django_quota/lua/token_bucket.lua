-- token_bucket: GCRA; bursts up to the capacity, then a steady refill.
--
-- KEYS   limit.key: a string, the theoretical arrival time (TAT) in microseconds; where something was given back, a space
--          and how much in all
-- ARGV   capacity = burst; a = interval between hits in microseconds
-- reply  inspect: ok, remaining, wait, reset; spend: remaining, wait, reset

local BUCKET_GIVEN_WRAP, BUCKET_UNDER_WAY = 1125899906842624, 3600000000

local function bucket_read(limit, now)
  local tat, given = string.match(redis.call('GET', limit.key) or '0', '^(%d+) ?(%d*)$')
  tat, given = tonumber(tat), tonumber(given) or 0
  limit.backlog = math.max(0, tat - limit.credit * limit.a - now)
  limit.given = tat + math.min(given, BUCKET_UNDER_WAY) > now and given or 0
  limit.before = limit.before or limit.given
end

local function bucket_write(limit, now)
  local given, stays = '', limit.backlog
  if limit.given > 0 then
    given, stays = ' ' .. integer(limit.given), stays + math.min(limit.given, BUCKET_UNDER_WAY)
  end
  redis.call('SET', limit.key, integer(now + limit.backlog) .. given, 'PX', lifetime(stays))
end

local function bucket_give_back(limit, span, now)
  span = math.min(span, limit.backlog)
  if span == limit.backlog and limit.given == 0 then
    redis.call('DEL', limit.key)
    return
  end
  limit.backlog, limit.given = limit.backlog - span, (limit.given + span) % BUCKET_GIVEN_WRAP
  bucket_write(limit, now)
end

local function bucket_remaining(limit)
  return math.max(0, math.floor((limit.capacity * limit.a - limit.backlog) / limit.a))
end

local function bucket_inspect(limit, now)
  bucket_read(limit, now)
  local wait = limit.backlog + limit.cost * limit.a - limit.capacity * limit.a
  local remaining = bucket_remaining(limit)
  if limit.capacity > 0 and wait <= 0 then return true, remaining, 0, limit.backlog end
  if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, limit.backlog end
  return false, remaining, wait, limit.backlog
end

-- Never further than a full bucket's worth from now, also where refusals are counted; `over` says otherwise.
local function bucket_spend(limit, now, over)
  local full = over and MOST or math.max(limit.capacity * limit.a, limit.backlog)
  limit.backlog = math.min(limit.backlog + limit.cost * limit.a, full)
  bucket_write(limit, now)
  return bucket_remaining(limit), 0, limit.backlog
end

local function bucket_refund(limit, now)
  bucket_read(limit, now)
  bucket_give_back(limit, limit.cost * limit.a, now)
end

-- What was taken first flows back first: of a hit whose last unit is back at `stop`, so many are still out.
local function bucket_still_used(limit, units, stop, now)
  return math.min(units, math.max(0, math.floor((stop - now) / limit.a)))
end

algorithms.token_bucket = {
  inspect = bucket_inspect, spend = bucket_spend, still_used = bucket_still_used, refund = bucket_refund,
}
