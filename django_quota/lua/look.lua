-- look: how a subject stands, and what it holds; nothing is written. It stands behind clock.
--
-- KEYS   [1] how the subject stands (see standing); then any number of sorted sets that are scored by expiry: its leases,
--        its holds
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the most that is read of each set
-- reply  now, the fields and values of [1] one behind the other, then for each set how many have not expired, and two for
--        each of the first of them: itself, and its expiry
local most = tonumber(ARGV[2])
local reply = { now, redis.call('HGETALL', KEYS[1]) }
local after = '(' .. integer(now)
for i = 2, #KEYS do
  local live = redis.call('ZRANGEBYSCORE', KEYS[i], after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  table.insert(live, 1, redis.call('ZCOUNT', KEYS[i], after, '+inf'))
  reply[i + 1] = live
end
return reply
