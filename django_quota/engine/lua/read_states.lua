-- read_states: reads all that keys hold, to copy it into another store.
--
-- KEYS   the keys
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
-- reply  now; by how much keys outlive their content, in milliseconds; then two for each key: its TTL in milliseconds
--        (below 0: it has none), and {form, words}, with the name of the form in Redis: "zset" (members, each with its
--        score), "hash" (fields, each with its value), "string" (one word), "distinct" (a HyperLogLog: no words), "none"
--        (there is no such key), or another type (no words)
local reply = { now, grace }
for _, key in ipairs(KEYS) do
  local form, words = redis.call('TYPE', key).ok, {}
  if form == 'zset' then
    words = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif form == 'hash' then
    words = redis.call('HGETALL', key)
  elseif form == 'string' then
    local value = redis.call('GET', key)
    if string.sub(value, 1, 4) == 'HYLL' then form = 'distinct' else words = { value } end
  end
  reply[#reply + 1] = redis.call('PTTL', key)
  reply[#reply + 1] = { form, words }
end
return reply
