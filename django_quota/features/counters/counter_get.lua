-- counter_get: reads a total.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now
-- reply  {DONE, what was counted: a string, 0 if there is none; how many units of it have expired}
local grants, problem, value = read_grants(1, 2)
return problem or { DONE, value or '0', grants.expired }
