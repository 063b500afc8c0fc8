-- lease_ring: ring a bell; who waits at it goes on, or whoever comes while it still sounds.
--
-- KEYS   [1] the bell: a list
-- ARGV   [1] now: not used; [2] how long it sounds where nobody waits, in milliseconds
-- reply  1; 0 where it still sounds from an earlier time
local bell_key = KEYS[1]
if redis.call('EXISTS', bell_key) == 1 then return 0 end
redis.call('RPUSH', bell_key, '1')
redis.call('PEXPIRE', bell_key, ARGV[2])
return 1
