-- leaky_bucket: the token bucket read the other way round: the backlog is a queue that drains evenly.
--
-- KEYS   limit.key: a string, the moment the queue is empty (microseconds), as token_bucket keeps its TAT
-- ARGV   capacity = room of the queue; a = interval between hits in microseconds
-- reply  as token_bucket, but that an admitted hit's wait is its delay: the time the hits before it take to leave
--
-- Who stands behind another was told when to leave: only the last place in the queue is given back, and nothing by a refund,
-- of which nobody knows whose place it was.

algorithms.leaky_bucket = {
  inspect = function(limit, now)
    local ok, remaining, wait, reset, more = bucket_inspect(limit, now)
    if ok then wait = limit.backlog end
    return ok, remaining, wait, reset, more
  end,
  spend = function(limit, now, over)
    local delay = limit.backlog
    local remaining, _, reset, more = bucket_spend(limit, now, over)
    return remaining, delay, reset, more
  end,
  refund = function() end,
  follow_clock = bucket_follow_clock,
  mark = bucket_mark,
  still_used = function(limit, units, now, stop, words)
    bucket_read(limit, now)
    if now + limit.backlog ~= stop then return 0 end
    return math.min(units * tonumber(string.match(words, '%d+$')), limit.backlog)
  end,
  give_back = bucket_give_back,
}
