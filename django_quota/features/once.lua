-- once: says whether a value is new.
--
-- KEYS   [1] the value's key: a string, until when it is remembered (microseconds)
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] how long it is remembered, in microseconds
-- reply  1 the first time; 0: known, and nothing has changed
local mark_key = KEYS[1]
local seen = redis.call('GET', mark_key)
if seen and tonumber(seen) > now then return 0 end
local span = tonumber(ARGV[2])
redis.call('SET', mark_key, integer(now + span), 'PX', lifetime(span))
return 1
