-- token_bucket: GCRA; bursts up to the capacity, then a steady refill.
--
-- KEYS   limit.key: a string, the theoretical arrival time (TAT) in microseconds
-- ARGV   capacity = burst; a = interval between hits in microseconds
-- reply  inspect: ok, remaining, wait, reset; spend: remaining, wait, reset

local function bucket_read(limit, now)
  local tat = tonumber(redis.call('GET', limit.key) or 0)
  limit.backlog = math.max(0, tat - limit.credit * limit.a - now)
end

local function bucket_write(limit, now)
  redis.call('SET', limit.key, integer(now + limit.backlog), 'PX', lifetime(limit.backlog))
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
  limit.backlog = limit.backlog - limit.cost * limit.a
  if limit.backlog > 0 then bucket_write(limit, now) else redis.call('DEL', limit.key) end
end

-- What was taken first flows back first: of a hit whose last unit is back at `stop`, so many are still out.
local function bucket_still_used(limit, units, stop, now)
  return math.min(units, math.max(0, math.floor((stop - now) / limit.a)))
end

algorithms.token_bucket = {
  inspect = bucket_inspect, spend = bucket_spend, still_used = bucket_still_used, refund = bucket_refund,
}
