-- counter_notes: what the scripts of a transfer between two slots share. It stands in front of each, behind counter_common.
--
-- What is on the way is noted in two sorted sets, whose scores say until when (microseconds). The outbox, beside the total
-- that gives: note -> until when it is carried on. The inbox, beside the total that receives: what has come, as its id, and
-- what could not, as "<id> <status>" -> until when that is remembered.
--
-- KEYS   those of the script behind it
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  that of the script behind it
local now = moment()

local function integer(number) return string.format('%.0f', number) end

-- Lets a sorted set live for as long as its last entry.
local function keep_to_last(key)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last[1] then keep(key, math.max(1, math.ceil((tonumber(last[2]) - now) / 1000) + 1)) end
end

-- Appends to a reply the notes of an outbox that are still carried on and were made so long ago: each with its score.
local function append_overdue(reply, key, kept, age, skipped, most)
  local first, last = '(' .. integer(now), integer(now + kept - age)
  local found = redis.call('ZRANGEBYSCORE', key, first, last, 'WITHSCORES', 'LIMIT', skipped, most)
  for _, word in ipairs(found) do reply[#reply + 1] = word end
  return reply
end
