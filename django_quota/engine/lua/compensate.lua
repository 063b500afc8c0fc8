-- compensate: takes back what hits have consumed, since a later part of their plan was refused. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide; the mode is "compensate", then for each hit " <near><receipt>,<receipt>". near n: the hit emitted "near",
--        else -. One receipt for each limit: the moment (microseconds) at which nothing of the hit is in use any more. For a
--        limit that counts values "<expiry>:<before>": the expiry that the hit gave the value, and the one before it (0:
--        none). For a bucket "<TAT>:<before>:<refunded>:<alone>": how much had been restored and refunded before the hit, and
--        when the hit would have flowed back alone. Behind them ";<due>:<token>", if the hit is held: the hold is dropped.
-- reply  compensate_all, flag_known: nothing
--
-- What others did meanwhile stays. If it cannot be told apart, less is restored, never more.

local restore, window, bucket = need('restore'), need('fixed_window'), need('token_bucket')

local compensators = {
  -- The hit's own entry goes, and the totals of later entries go down.
  sliding_window = function(limit, stop)
    local from = redis.call('ZRANGEBYSCORE', limit.key, integer(stop), '+inf', 'WITHSCORES')
    if not from[1] or tonumber(from[2]) ~= stop then return end
    local first_cost = tonumber(string.match(from[1], ':(%d+)$'))
    local less = math.min(limit.cost, first_cost)
    local added, kept, removed = {}, {}, {}
    for at = 1, #from, 2 do
      local total, cost = string.match(from[at], '^(%d+):(%d+)$')
      if at == 1 then cost = first_cost - less end
      if at > 1 or cost > 0 then
        local member = integer(tonumber(total) - less) .. ':' .. integer(tonumber(cost))
        added[#added + 1], added[#added + 2] = from[at + 1], member
        kept[member] = true
      end
    end
    for at = 1, #from, 2 do
      if not kept[from[at]] then removed[#removed + 1] = from[at] end
    end
    -- Add before removing: an empty set is gone, and its TTL with it.
    if added[1] then redis.call('ZADD', limit.key, unpack(added)) end
    redis.call('ZREM', limit.key, unpack(removed))
  end,

  distinct = function(limit, stop, before)
    if tonumber(redis.call('ZSCORE', limit.key, limit.value) or 0) ~= stop then return end
    if before > now then
      redis.call('ZADD', limit.key, integer(before), limit.value)
    else
      redis.call('ZREM', limit.key, limit.value)
    end
  end,

  token_bucket = function(limit, stop, before, refunded, alone)
    bucket.read(limit)
    local left = restore.token_bucket.left_of(limit, stop, before, refunded, alone)
    restore.token_bucket.restore(limit, math.min(limit.cost * limit.a, left))
  end,

  -- Later hits know when they leave: only the last place in the queue can be restored.
  leaky_bucket = function(limit, stop)
    bucket.read(limit)
    if now + limit.backlog == stop then restore.leaky_bucket.restore(limit, limit.cost * limit.a) end
  end,
}

-- A window that was reset and opened again ends at another moment.
compensators.fixed_window = function(limit, stop)
  window.read(limit)
  if limit.stop == stop then restore.fixed_window.refund(limit) end
end
compensators.calendar = compensators.fixed_window

local function compensate(hit, limit, receipt)
  local stop, before, refunded, alone = string.match(receipt, '^(%d+):?(%d*):?(%d*):?(%d*)$')
  stop = tonumber(stop)
  -- A limit that counts refused hits keeps the hit, since its plan was refused.
  if (limit.counted and hit.group == 0) or stop <= now then return end
  compensators[limit.name](limit, stop, tonumber(before), tonumber(refunded), tonumber(alone))
end

local function compensate_all(hits)
  local number = 0
  for near, receipts in string.gmatch(mode_arguments, '([n-])(%S+)') do
    number = number + 1
    local hit, at = hits[number], 0
    local of_limits, due, token = string.match(receipts, '^([^;]+);?(%d*):?(%S*)$')
    -- What a hold that is gone held has come back already.
    if due == '' or need('holds').drop(hit, token, due) then
      for receipt in string.gmatch(of_limits, '[^,]+') do
        at = at + 1
        compensate(hit, hit[at], receipt)
      end
    end
    if near == 'n' then redis.call('HDEL', hit.status_key, 'w:' .. hit.rule) end
  end
end

local function flag_known(hit)
  for _, limit in ipairs(hit) do
    if limit.before then need('flag')(hit, KNOWN_BEFORE, limit.before) end
    if limit.refunded_before then need('flag')(hit, KNOWN_BEFORE, limit.refunded_before) end
  end
end

return { compensate_all = compensate_all, flag_known = flag_known }
