-- calendar: one counter a period of the calendar; the caller knows the time zone, Redis knows the time.
--
-- KEYS   limit.key: a string "<count> <end in microseconds>", as fixed_window keeps it
-- ARGV   capacity; a, b, c = the edges of the current and the next period: [a, b) and [b, c), in microseconds
-- reply  as fixed_window; stale: whether now lies in neither period, so that the caller must send other edges

algorithms.calendar = {
  stale = function(limit, now) return now < limit.a or now >= limit.c end,
  inspect = tally_inspect,
  spend = function(limit, now, over) return tally_spend(limit, now, now < limit.b and limit.b or limit.c, over) end,
  refund = tally_refund,
}
