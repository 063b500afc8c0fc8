-- restore: how a limit gives units back: those of a refund, or those of a hold by its receipt. A module of decide.
--
-- KEYS   limit.key: see the algorithm
-- ARGV   as decide
-- reply  a table for each algorithm. refund: of limit.cost, never more than is used. Of a hit by its receipt, which is
--        "<until><words>" (see holds): still_used: how much of it still counts; restore: gives that back; both in units, for a bucket
--        in microseconds. For buckets also receipt: the words. A sliding window has entries_from and rewrite instead, for holds
--        and compensate
local bucket, window = need('token_bucket'), need('fixed_window')
local RESTORED_WRAP = bucket.RESTORED_WRAP

local function restore_window(limit, units)
  limit.count = limit.count - units
  if limit.count > 0 then window.write(limit) else redis.call('DEL', limit.key) end
end

local of_window = {
  refund = function(limit)
    window.read(limit)
    restore_window(limit, limit.cost)
  end,
  -- A window that was opened later ends at another moment.
  still_used = function(limit, units, stop)
    window.read(limit)
    return limit.count > 0 and limit.stop == stop and units or 0
  end,
  restore = restore_window,
}

local function restore_bucket(limit, span, is_refund)
  span = math.min(span, limit.backlog)
  if span <= 0 then return end
  if span == limit.backlog and not is_refund and limit.counts_until == 0 then -- it was the only one
    redis.call('DEL', limit.key)
    return
  end
  if limit.counts_until == 0 then limit.counts_until = now + limit.backlog end
  limit.backlog, limit.restored = limit.backlog - span, (limit.restored + span) % RESTORED_WRAP
  if is_refund then limit.refunded = (limit.refunded + span) % RESTORED_WRAP end
  bucket.write(limit)
end

-- The place of a hold in the queue.
local function receipt(limit)
  return table.concat({
    '', integer(limit.restored), integer(limit.refunded), integer(now + limit.cost * limit.a), integer(limit.a),
  }, ':')
end

-- Reads the entries of a sliding window from a score on.
local function entries_from(limit, score)
  local found, entries = redis.call('ZRANGEBYSCORE', limit.key, score, '+inf', 'WITHSCORES'), {}
  for at = 1, #found, 2 do
    local total, cost = string.match(found[at], '^(%d+):(%d+)$')
    entries[#entries + 1] = { member = found[at], score = found[at + 1], total = tonumber(total), cost = tonumber(cost) }
  end
  return entries
end

-- Writes entries that were read with a new total or cost.
local function rewrite(limit, entries)
  local added, kept, removed = {}, {}, {}
  for _, entry in ipairs(entries) do
    if entry.cost > 0 then
      local member = integer(entry.total) .. ':' .. integer(entry.cost)
      added[#added + 1], added[#added + 2] = entry.score, member
      kept[member] = true
    end
  end
  for _, entry in ipairs(entries) do
    if not kept[entry.member] then removed[#removed + 1] = entry.member end
  end
  -- Add before removing: an empty set is gone, and its TTL with it.
  if added[1] then redis.call('ZADD', limit.key, unpack(added)) end
  if removed[1] then redis.call('ZREM', limit.key, unpack(removed)) end
end

return {
  sliding_window = {
    entries_from = entries_from,
    rewrite = rewrite,
    -- Takes from the oldest entries: what stays expires no earlier than the hits that still count.
    refund = function(limit)
      redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
      local left = limit.cost
      while left > 0 do
        local entry = redis.call('ZRANGE', limit.key, 0, 0, 'WITHSCORES')
        if not entry[1] then return end
        local total, cost = string.match(entry[1], '^(%d+):(%d+)$')
        if tonumber(cost) > left then
          -- Add before removing: an empty set is gone, and its TTL with it.
          redis.call('ZADD', limit.key, entry[2], total .. ':' .. integer(tonumber(cost) - left))
        end
        redis.call('ZREM', limit.key, entry[1])
        left = left - tonumber(cost)
      end
    end,
  },

  fixed_window = of_window,
  calendar = of_window,

  token_bucket = {
    refund = function(limit)
      bucket.read(limit)
      restore_bucket(limit, limit.cost * limit.a, true)
    end,
    receipt = receipt,
    -- Less if it is not known, never more. It has moved up by what was restored ahead of it, at most by all that was restored.
    -- No more of it has flowed back than time has passed since it came, except that a refund may have been of its own units.
    still_used = function(limit, units, stop, words)
      bucket.read(limit)
      local restored, refunded, alone, interval = string.match(words, '^:(%d+):(%d+):(%d+):(%d+)$')
      local moved_up = (limit.restored - restored) % RESTORED_WRAP
      local own = (limit.refunded - refunded) % RESTORED_WRAP
      local left = math.max(stop - moved_up, alone - own) - now
      return math.max(0, math.min(units * interval, left, limit.backlog))
    end,
    restore = restore_bucket,
  },

  -- Later hits know when they leave. So only the last place in the queue is restored, and a refund restores nothing, since
  -- nobody knows whose place it was.
  leaky_bucket = {
    refund = function() end,
    receipt = receipt,
    still_used = function(limit, units, stop, words)
      bucket.read(limit)
      if now + limit.backlog ~= stop then return 0 end
      return math.min(units * tonumber(string.match(words, '%d+$')), limit.backlog)
    end,
    restore = restore_bucket,
  },

  distinct = {
    refund = function(limit)
      if limit.cost > 0 and limit.value then redis.call('ZREM', limit.key, limit.value) end
    end,
  },
}
