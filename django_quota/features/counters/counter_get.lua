-- counter_get: reads a total.
--
-- KEYS   [1] the total
-- ARGV   [1] now: not used
-- reply  {DONE, the total as a string: 0 if there is none}
local total, problem = read_total(1)
return problem or { DONE, total }
