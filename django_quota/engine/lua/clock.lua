-- clock: the time, and how long keys live. It goes before the scripts that need it.
--
-- KEYS   those of the script after it
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  that of the script after it
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function integer(number) return string.format('%.0f', number) end

-- A key's TTL in milliseconds: one more than its content needs, since keys expire on the millisecond. Tests pass the time in,
-- and keys expire by Redis' own clock: then one hour more.
local grace = ARGV[1] == '' and 1 or 3600000
local function lifetime(span) return integer(math.ceil(span / 1000) + grace) end

local function expire(key, span) redis.call('PEXPIRE', key, lifetime(span)) end

-- Lets a key live for at least `span` microseconds.
local function keep(key, span)
  if redis.call('PTTL', key) < tonumber(lifetime(span)) then expire(key, span) end
end

