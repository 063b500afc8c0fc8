-- calendar: one counter for each period of the calendar; the caller knows the time zone, Redis knows the time.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>", as fixed_window keeps it
-- ARGV   capacity; a, b, c = the edges of the current and the next period: [a, b) and [b, c), in microseconds
-- reply  as fixed_window; outside: whether now is in neither period, so that the caller must send other edges

algorithms.calendar = {
  outside = function(limit, now) return now < limit.a or now >= limit.c end,
  peek = window_peek,
  consume = function(limit, now, over) return window_consume(limit, now, now < limit.b and limit.b or limit.c, over) end,
  refund = window_refund,
}
