-- sweep: drops a limited number of expired entries of sorted sets, and gives a TTL to keys that have none.
--
-- KEYS   the keys, of any type
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] how many entries may go, over all the keys, in their order
--        [3] 1: give a TTL to keys that have none; 0: only say which it would be
--        then for each key "<swept> <lifetime>": swept 1: if it is a sorted set, its expired entries go; lifetime: the
--            TTL in milliseconds for a key that has none, if no score says how long it is needed
-- reply  four for each key: whether it is a sorted set that is swept (1 or 0), how many entries went, how many expired
--        ones are left, and the TTL in milliseconds that a key without one was given, or would be (0: it has one)
local LONGEST = 315360000000 -- ten years in milliseconds: a score that is not a time must not keep a key forever

local most, repairs = tonumber(ARGV[2]), ARGV[3] == '1'

-- How long a sorted set is needed: until its last entry expires.
local function needed(key, lifetime)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not last[1] or tonumber(last[2]) <= now then return lifetime end
  return math.min(math.ceil((tonumber(last[2]) - now) / 1000) + grace, LONGEST)
end

local reply = {}
for i, key in ipairs(KEYS) do
  local swept, lifetime = string.match(ARGV[i + 3], '^(%d) (%d+)$')
  local is_set = swept == '1' and redis.call('TYPE', key).ok == 'zset'
  local removed, left, given = 0, 0, 0
  if is_set then
    left = redis.call('ZCOUNT', key, '-inf', integer(now))
    removed = math.min(left, most)
    -- By rank, since a range of scores cannot be cut short.
    if removed > 0 then redis.call('ZREMRANGEBYRANK', key, 0, integer(removed - 1)) end
    most, left = most - removed, left - removed
  end
  if redis.call('PTTL', key) == -1 then
    given = is_set and needed(key, tonumber(lifetime)) or tonumber(lifetime)
    if repairs then redis.call('PEXPIRE', key, integer(given)) end
  end
  reply[#reply + 1] = is_set and 1 or 0
  reply[#reply + 1] = removed
  reply[#reply + 1] = left
  reply[#reply + 1] = given
end
return reply
