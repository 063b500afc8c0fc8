-- set_aside: sets a day's counts aside, so that they can be added to the database under their token. It follows clock.
--
-- KEYS   [1] the day's counts: a hash; fields as count_day has them; [2] the counts that are set aside: the same hash,
--        with its token under '#'
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the token that the database knows: the new one is
--        larger
-- reply  {1 if counts remain because earlier ones are aside, else 0; the fields and values of the counts that are
--        aside}; an error if a key holds something else, and nothing has changed
local day_key, aside_key = KEYS[1], KEYS[2]
if redis.call('EXISTS', aside_key) == 0 then
  if redis.call('HLEN', day_key) == 0 then return { 0, {} } end
  redis.call('RENAME', day_key, aside_key)
  redis.call('HSET', aside_key, '#', integer(math.max(now, ARGV[2] + 1)))
elseif not string.match(redis.call('HGET', aside_key, '#') or '', '^[1-9]%d*$') then
  return { err = 'WRONGTYPE not counts that were set aside' }
end
return { redis.call('EXISTS', day_key), redis.call('HGETALL', aside_key) }
