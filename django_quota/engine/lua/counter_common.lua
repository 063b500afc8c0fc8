-- counter_common: what the scripts of the counters share. It precedes each of them, and follows clock if they need the
-- time.
--
-- A counter's total is a string that INCRBY has written; its days are a hash for each month, with the fields "01" to
-- "31". Lua counts in doubles, which are exact up to 2^53 only: so Redis adds, and totals are read and compared as
-- strings.
--
-- KEYS   those of the script after it
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  a script's reply begins with DONE, or is one of {TOO_FEW}, {WRONG_DAY, now}, {NO_COUNTER, n} (KEYS[n] holds no
--        counter), {OVERFLOW, n} (KEYS[n] would overflow 64 bits) and {TOO_MANY, n} (KEYS[n] would have too many grants);
--        except for {DONE, ...} nothing has changed
local DONE, TOO_FEW, WRONG_DAY, NO_COUNTER, OVERFLOW, TOO_MANY = 1, 0, -1, -2, -3, -5

local function failed(reply) return type(reply) == 'table' and reply.err end

-- Returns the reply for the error of a command on KEYS[n]; an error with another cause than the key is returned as is.
local function fault(reply, n)
  local function says(words) return string.find(reply.err, words, 1, true) end
  if says('overflow') then return { OVERFLOW, n } end
  if says('WRONGTYPE') or says('not an integer') or says('INVALIDOBJ') then return { NO_COUNTER, n } end
  return reply
end

-- Says whether a whole number, written without a leading zero, is at least another one that is not negative.
local function at_least(number, other)
  if string.sub(number, 1, 1) == '-' then return false end
  return #number > #other or (#number == #other and number >= other)
end

-- Says whether a string is a whole number of 64 bits, as Redis writes it.
local function is_integer(text)
  local sign, digits = string.match(text, '^(-?)([1-9]%d*)$')
  if not digits then return text == '0' end
  return at_least(sign == '-' and '9223372036854775808' or '9223372036854775807', digits)
end

-- Returns the total under KEYS[n] as a string, and last the value of the key; or nil, and the reply that says why.
local function read_total(n)
  local key = KEYS[n]
  local value = redis.pcall('GET', key)
  if not value then return '0' end
  if failed(value) then return nil, fault(value, n) end
  if not is_integer(value) then return nil, { NO_COUNTER, n } end
  return value, nil, value
end

-- Restores the value that a key had before it was written; without one (false), deletes the key.
local function put_back(key, before)
  if before then redis.call('SET', key, before, 'KEEPTTL') else redis.call('DEL', key) end
end
