-- leaky_bucket: the token bucket seen from the other side: the backlog is a queue that drains evenly. A module of
-- decide.
--
-- KEYS   limit.key: a string, when the queue is empty (microseconds), as token_bucket keeps its TAT
-- ARGV   capacity = room of the queue; a = interval between hits in microseconds
-- reply  as token_bucket, but the retry_after of an admitted hit is its delay: the time until the hits before it have
--        left
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
  follow_clock = bucket.follow_clock,
}
