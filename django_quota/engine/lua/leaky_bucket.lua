-- leaky_bucket: the token bucket read the other way round: the backlog is a queue that drains evenly. A module of decide.
--
-- KEYS   limit.key: a string, when the queue is empty (microseconds), as token_bucket keeps its TAT
-- ARGV   capacity = room of the queue; a = interval between hits in microseconds
-- reply  as token_bucket, but the retry_after of an admitted hit is its delay: the time until the hits before it have left
--
-- Later hits know when they leave. So only the last place in the queue is restored, and a refund restores nothing, since
-- nobody knows whose place it was.
local bucket = need('token_bucket')

return {
  peek = function(limit)
    local allowed, remaining, wait, reset, more = bucket.peek(limit)
    if allowed then wait = limit.backlog end
    return allowed, remaining, wait, reset, more
  end,
  consume = function(limit, over)
    local delay = limit.backlog
    local remaining, _, reset, more = bucket.consume(limit, over)
    return remaining, delay, reset, more
  end,
  refund = function() end,
  follow_clock = bucket.follow_clock,
  receipt = bucket.receipt,
  still_used = function(limit, units, stop, words)
    bucket.read(limit)
    if now + limit.backlog ~= stop then return 0 end
    return math.min(units * tonumber(string.match(words, '%d+$')), limit.backlog)
  end,
  restore = bucket.restore,
}
