-- give_back_ended: gives the units of leases that have ended back to their counter. It follows leased_units.
--
-- KEYS   [1] the units that are taken for a lease; [2] the total of the counter; [3] the units of it that expire
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  how many leases have ended
return give_back_ended(KEYS[1], KEYS[2], KEYS[3])
