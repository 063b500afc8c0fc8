-- once: say whether a value is seen for the first time.
--
-- KEYS   [1] the value's mark: a string, until when it is remembered (microseconds)
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] how long it is remembered, in microseconds
-- reply  1 the first time; 0: seen before, and nothing has changed
local mark_key = KEYS[1]
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local seen = redis.call('GET', mark_key)
if seen and tonumber(seen) > now then return 0 end
local stop, span = now + tonumber(ARGV[2]), tonumber(ARGV[2])
-- Where the caller passes the time in (a test), Redis' own clock, by which keys expire, is another one: then an hour more.
local lifetime = math.ceil(span / 1000) + (ARGV[1] == '' and 1 or 3600000)
redis.call('SET', mark_key, string.format('%.0f', stop), 'PX', string.format('%.0f', lifetime))
return 1
