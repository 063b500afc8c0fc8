-- renew_leases: starts leases of units of a counter again from now.
--
-- KEYS   [1] the units that are taken for a lease: see leased_units
-- ARGV   [1] now; [2] how long a lease lasts from now; [3] how long the counter lives after a change, both in
--        microseconds; then the members
-- reply  how many of these leases still hold their units; the others stay ended
local leased_key, span = KEYS[1], tonumber(ARGV[2])
local renewed = 0
for i = 4, #ARGV do
  if redis.call('ZSCORE', leased_key, ARGV[i]) then
    redis.call('ZADD', leased_key, integer(now + span), ARGV[i])
    renewed = renewed + 1
  end
end
if renewed > 0 then keep(leased_key, span + tonumber(ARGV[3])) end
return renewed
