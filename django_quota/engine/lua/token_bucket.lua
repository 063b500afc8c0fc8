-- token_bucket: GCRA; bursts up to the capacity, then a steady refill.
--
-- KEYS   limit.key: a string "<TAT> <written>": the theoretical arrival time, and when it was written, in microseconds; if
--          something was restored, and anything that was consumed may still count,
--          "<TAT> <written> <restored> <refunded> <counts until>": how much in all, how much of it by refunds, and from when on
--          nothing counts any more
-- ARGV   capacity = burst; a = interval between hits in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more
--
-- A clock that steps back would look like a backlog as long as the step. So a bucket that was written later than now moves
-- back with the clock, as if the step had been refunded.

local BUCKET_RESTORED_WRAP = 1125899906842624

local function bucket_read(limit, now)
  local tat, written, restored, refunded, counts_until = string.match(
    redis.call('GET', limit.key) or '0', '^(%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  tat = tonumber(tat)
  limit.step = math.max(0, (tonumber(written) or 0) - now)
  limit.backlog = math.max(0, tat - limit.step - now)
  limit.restored, limit.refunded, limit.counts_until = 0, 0, tonumber(counts_until) or 0
  if limit.counts_until > now then
    limit.restored, limit.refunded = tonumber(restored), tonumber(refunded)
  else
    limit.counts_until = 0
  end
  if limit.step > 0 then
    limit.restored = (limit.restored + limit.step) % BUCKET_RESTORED_WRAP
    limit.refunded = (limit.refunded + limit.step) % BUCKET_RESTORED_WRAP
    limit.counts_until = math.max(limit.counts_until, tat)
  end
  -- For a peek: microseconds that due holds would restore, never more than the backlog.
  limit.backlog, limit.restored = limit.backlog - limit.credit, (limit.restored + limit.credit) % BUCKET_RESTORED_WRAP
end

local function bucket_write(limit, now)
  local known, stays = ' ' .. integer(now), limit.backlog
  if limit.counts_until > 0 then
    known = known .. ' ' .. integer(limit.restored) .. ' ' .. integer(limit.refunded) .. ' ' .. integer(limit.counts_until)
    stays = math.max(stays, limit.counts_until - now)
  end
  redis.call('SET', limit.key, integer(now + limit.backlog) .. known, 'PX', lifetime(stays))
end

local function bucket_restore(limit, span, now, is_refund)
  span = math.min(span, limit.backlog)
  if span <= 0 then return end
  if span == limit.backlog and not is_refund and limit.counts_until == 0 then -- it was the only one
    redis.call('DEL', limit.key)
    return
  end
  if limit.counts_until == 0 then limit.counts_until = now + limit.backlog end
  limit.backlog, limit.restored = limit.backlog - span, (limit.restored + span) % BUCKET_RESTORED_WRAP
  if is_refund then limit.refunded = (limit.refunded + span) % BUCKET_RESTORED_WRAP end
  bucket_write(limit, now)
end

-- How much (microseconds) is left of a hit; less if that is not known, never more. It has moved up by what was restored ahead
-- of it, at most by all that was restored. No more of it has flowed back than time has passed since it came, except that a
-- refund may have been of its own units.
local function bucket_left(limit, now, stop, restored, refunded, alone)
  local moved_up = (limit.restored - restored) % BUCKET_RESTORED_WRAP
  local own = (limit.refunded - refunded) % BUCKET_RESTORED_WRAP
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

local function bucket_peek(limit, now)
  bucket_read(limit, now)
  limit.before, limit.refunded_before = limit.before or limit.restored, limit.refunded_before or limit.refunded
  local wait = limit.backlog + limit.cost * limit.a - limit.capacity * limit.a
  local remaining = bucket_remaining(limit)
  local more = bucket_more(limit, remaining)
  if limit.capacity > 0 and wait <= 0 then return true, remaining, 0, limit.backlog, more end
  if limit.cost > limit.capacity or limit.capacity == 0 then return false, remaining, NEVER, limit.backlog, more end
  return false, remaining, wait, limit.backlog, more
end

-- Never further than a full bucket from now, also if refusals count, unless `over`.
local function bucket_consume(limit, now, over)
  local full = over and MOST or math.max(limit.capacity * limit.a, limit.backlog)
  limit.backlog = math.min(limit.backlog + limit.cost * limit.a, full)
  if limit.counts_until > 0 then limit.counts_until = math.max(limit.counts_until, now + limit.backlog) end
  bucket_write(limit, now)
  local remaining = bucket_remaining(limit)
  return remaining, 0, limit.backlog, bucket_more(limit, remaining)
end

-- Writes a bucket after the clock has stepped back: from then on time passes for it again.
local function bucket_follow_clock(limit, now)
  if limit.step > 0 then bucket_write(limit, now) end
end

local function bucket_refund(limit, now)
  bucket_read(limit, now)
  bucket_restore(limit, limit.cost * limit.a, now, true)
end

-- The receipt of a hold: its place in the queue.
local function bucket_receipt(limit, now)
  return table.concat({
    '', integer(limit.restored), integer(limit.refunded), integer(now + limit.cost * limit.a), integer(limit.a),
  }, ':')
end

local function bucket_still_used(limit, units, now, stop, words)
  bucket_read(limit, now)
  local restored, refunded, alone, interval = string.match(words, '^:(%d+):(%d+):(%d+):(%d+)$')
  local left = bucket_left(limit, now, stop, tonumber(restored), tonumber(refunded), tonumber(alone))
  return math.min(units * tonumber(interval), left)
end

algorithms.token_bucket = {
  peek = bucket_peek, consume = bucket_consume, refund = bucket_refund, follow_clock = bucket_follow_clock,
  receipt = bucket_receipt, still_used = bucket_still_used, restore = bucket_restore,
}
