-- token_bucket: GCRA; bursts up to the capacity, then a steady refill. A module of decide.
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

local RESTORED_WRAP = 1125899906842624

local function read(limit)
  limit.backlog, limit.step, limit.restored, limit.refunded, limit.counts_until = 0, 0, 0, 0, 0
  local value = redis.call('GET', limit.key)
  if value then
    local tat, written, notes = string.match(value, '^(%d+) ?(%d*)(.*)$')
    tat, written = tat + 0, written == '' and 0 or written + 0
    local step = written > now and written - now or 0
    if tat - step > now then limit.backlog = tat - step - now end
    if notes ~= '' then
      local restored, refunded, counts_until = string.match(notes, '^ (%d+) (%d+) (%d+)$')
      if tonumber(counts_until) > now then
        limit.restored, limit.refunded, limit.counts_until = tonumber(restored), tonumber(refunded), tonumber(counts_until)
      end
    end
    if step > 0 then
      limit.step = step
      limit.restored = (limit.restored + step) % RESTORED_WRAP
      limit.refunded = (limit.refunded + step) % RESTORED_WRAP
      limit.counts_until = math.max(limit.counts_until, tat)
    end
  end
  if limit.credit then -- for a peek: microseconds that due holds would restore, never more than the backlog
    limit.backlog, limit.restored = limit.backlog - limit.credit, (limit.restored + limit.credit) % RESTORED_WRAP
  end
end

local function write(limit)
  local known, stays = ' ' .. integer(now), limit.backlog
  if limit.counts_until > 0 then
    known = known .. ' ' .. integer(limit.restored) .. ' ' .. integer(limit.refunded) .. ' ' .. integer(limit.counts_until)
    stays = math.max(stays, limit.counts_until - now)
  end
  redis.call('SET', limit.key, integer(now + limit.backlog) .. known, 'PX', lifetime(stays))
end

local function remaining_of(limit)
  local left = limit.capacity * limit.a - limit.backlog
  return left > 0 and math.floor(left / limit.a) or 0
end

-- How long until one unit more is left.
local function more_after(limit, remaining)
  if limit.backlog == 0 or limit.capacity == 0 then return NEVER end
  return limit.backlog - (limit.capacity - remaining - 1) * limit.a
end

return {
  RESTORED_WRAP = RESTORED_WRAP,
  read = read,
  write = write,

  peek = function(limit)
    read(limit)
    if mode == 'tentative' then limit.before, limit.refunded_before = limit.restored, limit.refunded end
    local capacity, cost, backlog = limit.capacity, limit.cost, limit.backlog
    local wait = backlog + (cost - capacity) * limit.a
    local remaining = remaining_of(limit)
    local more = more_after(limit, remaining)
    if capacity > 0 and wait <= 0 then return true, remaining, 0, backlog, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, backlog, more end
    return false, remaining, wait, backlog, more
  end,

  -- Never further than a full bucket from now, also if refusals count, unless `over`.
  consume = function(limit, over)
    local full = over and MOST or math.max(limit.capacity * limit.a, limit.backlog)
    limit.backlog = math.min(limit.backlog + limit.cost * limit.a, full)
    if limit.counts_until > 0 then limit.counts_until = math.max(limit.counts_until, now + limit.backlog) end
    write(limit)
    local remaining = remaining_of(limit)
    return remaining, 0, limit.backlog, more_after(limit, remaining)
  end,

  -- Writes a bucket after the clock has stepped back: from then on time passes for it again.
  follow_clock = function(limit)
    if limit.step > 0 then write(limit) end
  end,
}
