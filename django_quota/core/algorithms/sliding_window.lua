-- sliding_window: never more than the limit in any window, in a bounded sorted set. A module of decide.
--
-- KEYS   limit.key: see sliding_entries
-- ARGV   capacity; a = window; b = slice width (0: every hit is an entry); both in microseconds
-- reply  peek: allowed, remaining, retry_after, reset, more; consume: remaining, retry_after, reset, more

return {
  peek = function(limit)
    local capacity, cost = limit.capacity, limit.cost
    local used, expiry, has_expired, total, last, last_cost, first_expiry, first_cost = read_entries(limit.key)
    limit.used = used
    limit.expiry = expiry
    limit.has_expired = has_expired
    limit.total = total
    limit.last = last
    limit.last_cost = last_cost
    limit.first_expiry = first_expiry
    limit.first_cost = first_cost
    local reset = expiry - now
    local more = NEVER
    if used > 0 and capacity > 0 then
      local is_first = used <= capacity and first_cost > 0
      more = is_first and first_expiry - now or need('sliding_wait')(limit, math.max(0, used - capacity) + 1)
    end
    local remaining = capacity - used
    if capacity > 0 and used + cost <= capacity then return true, remaining, 0, reset, more end
    if cost > capacity or capacity == 0 then return false, remaining, NEVER, reset, more end
    return false, remaining, need('sliding_wait')(limit, used + cost - capacity), reset, more
  end,

  consume = function(limit, over)
    local over_capacity = math.min(limit.cost, limit.used + limit.cost - limit.capacity)
    local remaining, wait, reset, more = add_entry(
      limit.key, limit.cost, limit.capacity, limit.a, limit.b, limit.used, limit.expiry, limit.has_expired, limit.total,
      limit.last, limit.last_cost, limit.first_expiry
    )
    -- A refused hit that counts replaces the oldest hits: a full window refuses everything.
    if over_capacity > 0 and not over then need('restore').sliding_window.refund(limit, over_capacity) end
    return remaining, wait, reset, more
  end,
}
