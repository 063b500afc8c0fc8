-- inspect_subject: reads the status of a subject and its leases; nothing is written. It follows clock.
--
-- KEYS   [1] the status of the subject (see subject_status); then any number of sorted sets, whose scores are when the
--        members expire
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] how many members of each set are read
-- reply  now; the fields and values of [1], one after the other; then one list for each set: how many members have not
--        expired, and for each of the first of them the member and its expiry
local status_key = KEYS[1]
local most = tonumber(ARGV[2])
local reply = { now, redis.call('HGETALL', status_key) }
local after = '(' .. integer(now)
for i = 2, #KEYS do
  local live = redis.call('ZRANGEBYSCORE', KEYS[i], after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  table.insert(live, 1, redis.call('ZCOUNT', KEYS[i], after, '+inf'))
  reply[i + 1] = live
end
return reply
