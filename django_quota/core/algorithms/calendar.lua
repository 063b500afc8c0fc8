-- calendar: one counter for each period of the calendar. A module of decide. The caller knows the time zone, Redis the
-- time.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>", as fixed_window keeps it
-- ARGV   capacity; a, b, c = the edges of the current and the next period: [a, b) and [b, c), in microseconds
-- reply  as fixed_window; outside: whether now is in neither period, so that the caller must send other edges
local window = need('fixed_window')

return {
  outside = function(limit) return now < limit.a or now >= limit.c end,
  peek = window.peek,
  consume = function(limit, over) return window.consume_until(limit, now < limit.b and limit.b or limit.c, over) end,
}
