-- record_refusals: counts refusals that a process has made from its memory. It goes after clock.
--
-- KEYS   [1] the status of the subject (see subject_status); [2] the counts of the day (see count_day), if the rule has them
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the rule's name in fields; [3] how many refusals;
--        [4] microseconds from one "refused" event to the next; 0: no event; [5] how long counts wait for the roll-up
-- reply  1 if a "refused" event is due, which the caller writes; else 0
local rule, number, span = ARGV[2], ARGV[3], tonumber(ARGV[4])
if KEYS[2] then
  redis.call('HINCRBY', KEYS[2], rule .. ':r', number)
  if redis.call('HSETNX', KEYS[2], '#', integer(now)) == 1 then expire(KEYS[2], tonumber(ARGV[5])) end
end
if span == 0 or tonumber(redis.call('HGET', KEYS[1], 'e:' .. rule) or 0) > now then return 0 end
redis.call('HSET', KEYS[1], 'e:' .. rule, integer(now + span))
keep(KEYS[1], span)
return 1
