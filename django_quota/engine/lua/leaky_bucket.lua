-- leaky_bucket: the token bucket read the other way round: the backlog is a queue that drains evenly.
--
-- KEYS   limit.key: a string, when the queue is empty (microseconds), as token_bucket keeps its TAT
-- ARGV   capacity = room of the queue; a = interval between hits in microseconds
-- reply  as token_bucket, but the retry_after of an admitted hit is its delay: the time until the hits before it have left
--
-- Later hits know when they leave. So only the last place in the queue is restored, and a refund restores nothing, since
-- nobody knows whose place it was.

algorithms.leaky_bucket = {
  peek = function(limit, now)
    local ok, remaining, wait, reset, more = bucket_peek(limit, now)
    if ok then wait = limit.backlog end
    return ok, remaining, wait, reset, more
  end,
  consume = function(limit, now, over)
    local delay = limit.backlog
    local remaining, _, reset, more = bucket_consume(limit, now, over)
    return remaining, delay, reset, more
  end,
  refund = function() end,
  follow_clock = bucket_follow_clock,
  receipt = bucket_receipt,
  still_used = function(limit, units, now, stop, words)
    bucket_read(limit, now)
    if now + limit.backlog ~= stop then return 0 end
    return math.min(units * tonumber(string.match(words, '%d+$')), limit.backlog)
  end,
  restore = bucket_restore,
}
