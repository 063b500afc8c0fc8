-- lease_holders: reads who holds a slot; nothing is written.
--
-- KEYS   [1] the leases
-- ARGV   [1] now; [2] not used
-- reply  two for each holder, the first to end first: its token, and the microseconds until its lease ends
local held = redis.call('ZRANGEBYSCORE', leases_key, '(' .. integer(now), '+inf', 'WITHSCORES')
for i = 2, #held, 2 do held[i] = tonumber(held[i]) - now end
return held
