-- lease_renew: starts a lease again from now.
--
-- KEYS   [1] the leases
-- ARGV   [1] now; [2] the token; [3] how long it lasts from now, in microseconds; [4] 1: even if it has ended and all
--        slots are held, else 0
-- reply  1; 0 if the lease has ended: then nothing has changed
if ARGV[4] == '0' and not is_held() then return 0 end
hold(tonumber(ARGV[3]))
return 1
