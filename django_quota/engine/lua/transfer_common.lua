-- transfer_common: what the scripts of a transfer between two slots share. It goes before each, after counter_common.
--
-- Pending transfers lie in two sorted sets, whose scores are moments (microseconds). The outbox, beside the source: transfer ->
-- until when it can be resumed. The inbox, beside the destination: the id of what has arrived, or "<id> <status>" of what could
-- not be added -> until when that is remembered.
--
-- KEYS   those of the script after it
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  that of the script after it
-- Lets a sorted set live for as long as its last entry.
local function keep_to_last(key)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last[1] then expire(key, math.max(0, tonumber(last[2]) - now)) end
end

-- Appends to a reply the transfers of an outbox that can still be resumed and began `age` ago or earlier: each with its score.
local function append_overdue(reply, key, kept, age, skipped, most)
  local first, last = '(' .. integer(now), integer(now + kept - age)
  local found = redis.call('ZRANGEBYSCORE', key, first, last, 'WITHSCORES', 'LIMIT', skipped, most)
  for _, word in ipairs(found) do reply[#reply + 1] = word end
  return reply
end
