-- token_bucket: GCRA; bursts up to the capacity, then a steady refill.
--
-- KEYS   limit.key: a string "<TAT> <written>": the theoretical arrival time, and when it was written, in microseconds; where
--          something was given back, and anything that was spent may still count,
--          "<TAT> <written> <given> <refunded> <asked until>": how much in all, how much of it by refunds, and the moment
--          from which on nothing counts any more
-- ARGV   capacity = burst; a = interval between hits in microseconds
-- reply  inspect: ok, remaining, wait, reset, more; spend: remaining, wait, reset, more
--
-- A clock that steps back would look like a backlog as long as the step. So a bucket that was written later than now moves
-- back with the clock, as if the step had been refunded.

local BUCKET_GIVEN_WRAP = 1125899906842624

local function bucket_read(limit, now)
  local tat, written, given, refunded, asked_until = string.match(
    redis.call('GET', limit.key) or '0', '^(%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  tat = tonumber(tat)
  limit.step = math.max(0, (tonumber(written) or 0) - now)
  limit.backlog = math.max(0, tat - limit.step - now)
  limit.given, limit.refunded, limit.asked_until = 0, 0, tonumber(asked_until) or 0
  if limit.asked_until > now then
    limit.given, limit.refunded = tonumber(given), tonumber(refunded)
  else
    limit.asked_until = 0
  end
  if limit.step > 0 then
    limit.given = (limit.given + limit.step) % BUCKET_GIVEN_WRAP
    limit.refunded = (limit.refunded + limit.step) % BUCKET_GIVEN_WRAP
    limit.asked_until = math.max(limit.asked_until, tat)
  end
  -- Of a peek: microseconds, never more than the backlog.
  limit.backlog, limit.given = limit.backlog - limit.credit, (limit.given + limit.credit) % BUCKET_GIVEN_WRAP
end

local function bucket_write(limit, now)
  local known, stays = ' ' .. integer(now), limit.backlog
  if limit.asked_until > 0 then
    known = known .. ' ' .. integer(limit.given) .. ' ' .. integer(limit.refunded) .. ' ' .. integer(limit.asked_until)
    stays = math.max(stays, limit.asked_until - now)
  end
  redis.call('SET', limit.key, integer(now + limit.backlog) .. known, 'PX', lifetime(stays))
end

local function bucket_give_back(limit, span, now, is_refund)
  span = math.min(span, limit.backlog)
  if span <= 0 then return end
  if span == limit.backlog and not is_refund and limit.asked_until == 0 then -- it was the only one
    redis.call('DEL', limit.key)
    return
  end
  if limit.asked_until == 0 then limit.asked_until = now + limit.backlog end
  limit.backlog, limit.given = limit.backlog - span, (limit.given + span) % BUCKET_GIVEN_WRAP
  if is_refund then limit.refunded = (limit.refunded + span) % BUCKET_GIVEN_WRAP end
  bucket_write(limit, now)
end

-- How much (microseconds) is left of a hit, or less where that is not known, never more. It has moved up by what was given
-- back ahead of it: by all that was, at most. And however far it has moved up, no more of it has flowed back than time has
-- passed since it came; but a refund may have been of its own units.
local function bucket_left(limit, now, stop, given, refunded, alone)
  local moved_up = (limit.given - given) % BUCKET_GIVEN_WRAP
  local own = (limit.refunded - refunded) % BUCKET_GIVEN_WRAP
  return math.max(0, math.min(math.max(stop - moved_up, alone - own) - now, limit.backlog))
end

local function bucket_remaining(limit)
  return math.max(0, math.floor((limit.capacity * limit.a - limit.backlog) / limit.a))
end

-- How long until one unit more is left.
local function bucket_more(limit, remaining)
  if limit.backlog == 0 or limit.capacity == 0 then return NEVER end
  return limit.backlog - (limit.capacity - remaining - 1) * limit.a
end

local function bucket_inspect(limit, now)
  bucket_read(limit, now)
  limit.before, limit.refunded_before = limit.before or limit.given, limit.refunded_before or limit.refunded
  local wait = limit.backlog + limit.cost * limit.a - limit.capacity * limit.a
  local remaining = bucket_remaining(limit)
  local more = bucket_more(limit, remaining)
  if limit.capacity > 0 and wait <= 0 then return true, remaining, 0, limit.backlog, more end
  if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, limit.backlog, more end
  return false, remaining, wait, limit.backlog, more
end

-- Never further than a full bucket's worth from now, also where refusals are counted; `over` says otherwise.
local function bucket_spend(limit, now, over)
  local full = over and MOST or math.max(limit.capacity * limit.a, limit.backlog)
  limit.backlog = math.min(limit.backlog + limit.cost * limit.a, full)
  if limit.asked_until > 0 then limit.asked_until = math.max(limit.asked_until, now + limit.backlog) end
  bucket_write(limit, now)
  local remaining = bucket_remaining(limit)
  return remaining, 0, limit.backlog, bucket_more(limit, remaining)
end

-- Writes what was read of a bucket after the clock has stepped back: from then on time passes for it again.
local function bucket_follow_clock(limit, now)
  if limit.step > 0 then bucket_write(limit, now) end
end

local function bucket_refund(limit, now)
  bucket_read(limit, now)
  bucket_give_back(limit, limit.cost * limit.a, now, true)
end

-- What a hold notes of its place in the queue.
local function bucket_mark(limit, now)
  return table.concat({
    '', integer(limit.given), integer(limit.refunded), integer(now + limit.cost * limit.a), integer(limit.a),
  }, ':')
end

local function bucket_still_used(limit, units, now, stop, words)
  bucket_read(limit, now)
  local given, refunded, alone, interval = string.match(words, '^:(%d+):(%d+):(%d+):(%d+)$')
  local left = bucket_left(limit, now, stop, tonumber(given), tonumber(refunded), tonumber(alone))
  return math.min(units * tonumber(interval), left)
end

algorithms.token_bucket = {
  inspect = bucket_inspect, spend = bucket_spend, refund = bucket_refund, follow_clock = bucket_follow_clock,
  mark = bucket_mark, still_used = bucket_still_used, give_back = bucket_give_back,
}
