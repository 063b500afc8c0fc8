-- counter_grants: reads a total, and what is left of grants.
--
-- KEYS   [1] the total; [2] the units of it that expire
-- ARGV   [1] now
-- reply  {DONE, what was counted, how many units of it have expired: as for counter_get; then each grant of which
--        something is left, as a member of [2]; the first to expire first}
local grants, problem, value = read_grants(1, 2)
if problem then return problem end
local reply = { DONE, value or '0', grants.expired }
for _, grant in ipairs(grants.live) do
  if grant.left > 0 then reply[#reply + 1] = need_grants().member_of(grant) end
end
return reply
