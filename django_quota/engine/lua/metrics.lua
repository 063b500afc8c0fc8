-- metrics: adds what a process has counted.
--
-- KEYS   [1] the day's counts; [2] the minute's: hashes, fields <rule>:a (allowed), <rule>:r (refused), <rule>:s (shadow)
--        [3] who was refused that day: a sorted set of subjects, scored by how often
--        [4] slots that were asked for: a sorted set, scored by when they are forgotten
--        [5] the counts of all days, in the fields of a day; [6] the last message of this process that was counted
-- ARGV   [1] now; [2] the number of the message; [3] how many fields; [4] how many subjects; [5] how many slots; then these,
--            each with its count or, of slots, for how long it is remembered, in microseconds
-- reply  1
local FIELDS = 1000 -- of a hash; further rules are counted together, under '*'
local SUBJECTS, SLOTS = 2000, 2000
local DAY_TTL, MINUTE_TTL, TOTAL_TTL = 2 * 86400000000, 7200000000, 400 * 86400000000

if is_repeated(KEYS[6], tonumber(ARGV[2])) then return 1 end

local read = 5
local function next_pair()
  read = read + 2
  return ARGV[read - 1], ARGV[read]
end

local function add(key, field, count)
  if redis.call('HLEN', key) >= FIELDS and redis.call('HEXISTS', key, field) == 0 then
    field = '*' .. string.sub(field, -2)
  end
  redis.call('HINCRBY', key, field, count)
end

for _ = 1, tonumber(ARGV[3]) do
  local field, count = next_pair()
  add(KEYS[1], field, count)
  add(KEYS[2], field, count)
  add(KEYS[5], field, count)
end
keep(KEYS[1], DAY_TTL)
keep(KEYS[2], MINUTE_TTL)
keep(KEYS[5], TOTAL_TTL)

-- Keeps the `most` highest scores if there are more than 1.5 times as many: so most calls drop nothing.
local function trim(key, most)
  local surplus = redis.call('ZCARD', key) - most
  if surplus > most / 2 then redis.call('ZREMRANGEBYRANK', key, 0, integer(surplus - 1)) end
end

for _ = 1, tonumber(ARGV[4]) do
  local subject, count = next_pair()
  redis.call('ZINCRBY', KEYS[3], count, subject)
end
trim(KEYS[3], SUBJECTS)
keep(KEYS[3], DAY_TTL)

for _ = 1, tonumber(ARGV[5]) do
  local slot, span = next_pair()
  redis.call('ZADD', KEYS[4], integer(now + tonumber(span)), slot)
  keep(KEYS[4], tonumber(span))
end
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', integer(now))
trim(KEYS[4], SLOTS)
note_counted(KEYS[6], tonumber(ARGV[2]))
return 1
