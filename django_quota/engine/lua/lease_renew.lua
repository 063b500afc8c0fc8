-- lease_renew: extends a lease from now on.
--
-- KEYS   [1] the leases
-- ARGV   [1] now; [2] the token; [3] how long it lasts from now, in microseconds
-- reply  1; 0 if the lease has ended: then nothing has changed
if not ends(leases_key, token) then return 0 end
redis.call('ZADD', leases_key, integer(now + tonumber(ARGV[3])), token)
keep(leases_key, tonumber(ARGV[3]))
return 1
