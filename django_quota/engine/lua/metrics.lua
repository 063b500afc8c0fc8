-- metrics: adds what a process has counted.
--
-- KEYS   [1] the day's counts; [2] the minute's: hashes, fields <rule>:a (allowed), <rule>:r (refused), <rule>:s
--            (shadow)
--        [3] who was refused that day: a sorted set of subjects, scored by how often
--        [4] slots that were asked for: a sorted set, scored by when they are forgotten
--        [5] the counts of all days, in the fields of a day; [6] the last message of this process that was counted
-- ARGV   [1] now; [2] the number of the message; [3] how many fields; [4] how many subjects; [5] how many slots; then
--            these, each with its count or, of slots, for how long it is remembered, in microseconds
-- reply  1
local FIELDS = 1000 -- of a hash; further rules are counted together, under '*'
local OUTAGES = '!:a' -- is of no rule, and always has a field of its own
local SUBJECTS, SLOTS = 2000, 2000
local DAY_TTL, MINUTE_TTL, TOTAL_TTL = 2 * 86400000000, 7200000000, 400 * 86400000000

local day_key, minute_key, total_key = KEYS[1], KEYS[2], KEYS[5]
local subjects_key, slots_key, message_key = KEYS[3], KEYS[4], KEYS[6]
local message = tonumber(ARGV[2])

if is_repeated(message_key, message) then return 1 end

-- Fails before it writes, if a key holds something else: the message is sent again, and would be added again.
for _, key in ipairs({ day_key, minute_key, total_key }) do redis.call('HLEN', key) end
for _, key in ipairs({ subjects_key, slots_key }) do redis.call('ZCARD', key) end

local read = 5
local function next_pair()
  read = read + 2
  return ARGV[read - 1], ARGV[read]
end

local function add(key, field, count)
  if field ~= OUTAGES and redis.call('HLEN', key) >= FIELDS and redis.call('HEXISTS', key, field) == 0 then
    field = '*' .. string.sub(field, -2)
  end
  redis.call('HINCRBY', key, field, count)
end

for _ = 1, tonumber(ARGV[3]) do
  local field, count = next_pair()
  add(day_key, field, count)
  add(minute_key, field, count)
  add(total_key, field, count)
end
keep(day_key, DAY_TTL)
keep(minute_key, MINUTE_TTL)
keep(total_key, TOTAL_TTL)

-- Keeps the `most` highest scores, but only once there are 1.5 times as many: so most calls drop nothing.
local function trim(key, most)
  local surplus = redis.call('ZCARD', key) - most
  if surplus > most / 2 then redis.call('ZREMRANGEBYRANK', key, 0, integer(surplus - 1)) end
end

for _ = 1, tonumber(ARGV[4]) do
  local subject, count = next_pair()
  redis.call('ZINCRBY', subjects_key, count, subject)
end
trim(subjects_key, SUBJECTS)
keep(subjects_key, DAY_TTL)

for _ = 1, tonumber(ARGV[5]) do
  local slot, span = next_pair()
  redis.call('ZADD', slots_key, integer(now + tonumber(span)), slot)
  keep(slots_key, tonumber(span))
end
redis.call('ZREMRANGEBYSCORE', slots_key, '-inf', integer(now))
trim(slots_key, SLOTS)
note_counted(message_key, message, SENT_TTL)
return 1
