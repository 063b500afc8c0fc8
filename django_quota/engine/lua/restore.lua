-- restore: how a limit gives units back: for a refund, or where a hit was counted. A module of decide.
--
-- KEYS   limit.key: see the algorithm
-- ARGV   as decide
-- reply  a table for each algorithm. refund: gives limit.cost back, never more than is used. give_back: gives some
--        units of a hit back, if they still count; limit.cost: what the hit took; moment: when it was decided; drawn:
--        what it took of grants of a counter
local bucket, window = need('token_bucket'), need('fixed_window')

local function restore_window(limit, units)
  limit.count = limit.count - units
  if limit.count > 0 then window.write(limit) else redis.call('DEL', limit.key) end
end

local function refund_window(limit)
  window.read(limit)
  restore_window(limit, limit.cost)
end

local function restore_bucket(limit, span)
  if span <= 0 then return end
  limit.backlog = limit.backlog - span
  if limit.backlog > 0 then bucket.write(limit, math.min(limit.written, now)) else redis.call('DEL', limit.key) end
end

-- No more than what has not refilled since the hit.
local function give_back_bucket(limit, units, moment)
  restore_bucket(limit, math.min(units * limit.a, limit.cost * limit.a - (now - moment)))
end

return {
  sliding_window = {
    -- Takes from the oldest entries: what stays expires no earlier than the hits that still count.
    refund = function(limit, units)
      redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
      local left = units or limit.cost
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
    -- Takes from the slice that holds the moment, and never more than it holds. The totals of later entries go down.
    give_back = function(limit, units, moment)
      local slice, first = limit.b, moment + limit.a
      local last = slice > 0 and moment - moment % slice + slice - 1 + limit.a or first
      if first <= now then first = now + 1 end -- no entry that has expired
      local entries = redis.call('ZRANGEBYSCORE', limit.key, integer(first), '+inf', 'WITHSCORES')
      if not entries[1] or tonumber(entries[2]) > last then return end
      local less, added = nil, {}
      for at = 1, #entries, 2 do
        local total, cost = string.match(entries[at], '^(%d+):(%d+)$')
        total, cost = tonumber(total), tonumber(cost)
        if at == 1 then
          less = math.min(units, cost)
          cost = cost - less
        end
        if cost > 0 then
          added[#added + 1], added[#added + 2] = entries[at + 1], integer(total - less) .. ':' .. integer(cost)
        end
      end
      redis.call('ZREMRANGEBYSCORE', limit.key, integer(first), '+inf')
      if added[1] then
        redis.call('ZADD', limit.key, unpack(added))
        keep(limit.key, entries[#entries] - now)
      end
      redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', integer(now))
    end,
  },

  fixed_window = {
    refund = refund_window,
    give_back = function(limit, units, moment)
      window.read(limit)
      if limit.count > 0 and limit.stop - limit.a <= moment then restore_window(limit, units) end
    end,
  },

  calendar = {
    refund = refund_window,
    give_back = function(limit, units, moment)
      window.read(limit)
      local begin = limit.stop > limit.b and limit.b or limit.a
      if limit.count > 0 and begin <= moment then restore_window(limit, units) end
    end,
  },

  subscription = {
    refund = function(limit) need('subscription').restore(limit, limit.cost, math.huge) end,
    give_back = function(limit, units, moment) need('subscription').restore(limit, units, moment) end,
  },

  token_bucket = {
    refund = function(limit)
      bucket.read(limit)
      restore_bucket(limit, limit.cost * limit.a)
    end,
    give_back = function(limit, units, moment)
      bucket.read(limit)
      give_back_bucket(limit, units, moment)
    end,
  },

  -- Later hits know when they leave. So only the last hit in the queue gives its place back. A refund gives nothing
  -- back, since it does not say whose place to free.
  leaky_bucket = {
    refund = function() end,
    give_back = function(limit, units, moment)
      bucket.read(limit)
      if limit.written == moment then give_back_bucket(limit, units, moment) end
    end,
  },

  distinct = {
    refund = function(limit)
      if limit.cost > 0 and limit.value then redis.call('ZREM', limit.key, limit.value) end
    end,
    give_back = function(limit, _, moment)
      local expiry = limit.value and redis.call('ZSCORE', limit.key, limit.value)
      if expiry and tonumber(expiry) == moment + limit.a then redis.call('ZREM', limit.key, limit.value) end
    end,
  },

  stock = {
    refund = function(limit) need('stock').give_back(limit, limit.cost, '') end,
    give_back = function(limit, units, _, drawn) need('stock').give_back(limit, units, drawn) end,
  },
}
