-- complete_publication: lets a marker show that all overrides are published, unless Redis lost a part of them meanwhile.
--
-- KEYS   [1] the marker: a whole number; [2] the count of what its server received meanwhile
-- ARGV   [1] now: not used; [2] what that count must be; [3] the generation that the marker shall show
--        [4] how long the marker is kept, in microseconds
-- reply  the generation that the marker shows then, which may be a later one; 0 if the count is different
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
local shown = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[3]))
redis.call('SET', KEYS[1], integer(shown))
expire(KEYS[1], tonumber(ARGV[4]))
redis.call('DEL', KEYS[2])
return shown
