-- clock: the time. It precedes the scripts that need it.
--
-- KEYS   those of the script after it
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  that of the script after it
local now, grace = ARGV[1], 3600000
if now == '' then
  local time = redis.call('TIME')
  now, grace = time[1] * 1000000 + time[2], 1
else
  now = tonumber(now)
end

