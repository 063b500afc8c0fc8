-- forget: drop what lies under some keys.
--
-- KEYS   the keys
-- ARGV   [1] now: not used
-- reply  how many there were
local dropped = 0
for _, key in ipairs(KEYS) do dropped = dropped + redis.call('DEL', key) end
return dropped
