-- lifetimes: how long keys live. It precedes the scripts that need it, after clock.
--
-- KEYS   those of the script after it
-- ARGV   those of the script after it
-- reply  that of the script after it

-- A number as a string without decimals. Lua itself would write a large one as 1.7637e+15. '%d' takes a C long, which
-- may have 32 bits: so this writes a large number in two parts, in half the time of '%.0f'.
local function integer(number)
  if number < 100000000 then return string.format('%d', number) end
  return string.format('%d%08d', number / 100000000, number % 100000000)
end

-- A key's TTL in milliseconds, rounded up: `grace` more than its content needs, since keys expire on the millisecond.
-- Tests pass the time in, and keys expire by Redis' own clock: then one hour more.
local function lifetime(span) return integer((span + 999) / 1000 + grace) end

local function expire(key, span) redis.call('PEXPIRE', key, lifetime(span)) end

-- Lets a key live for at least `span` microseconds.
local function keep(key, span)
  if redis.call('PTTL', key) < tonumber(lifetime(span)) then expire(key, span) end
end

