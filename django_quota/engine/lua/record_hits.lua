-- record_hits: counts hits that a process has decided without the store. It follows clock.
--
-- KEYS   [1] the status of the subject (see subject_status); [2] the counts of the day (see count_day), if the rule has them
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the rule's name in fields; [3] microseconds from one "refused"
--        event to the next; 0: no event; [4] how long counts wait for the roll-up; [5] the tier of the subject under the rule,
--        or ''; then two for each count: its field and by how much it changes
-- reply  1 if a "refused" event is due, which the caller writes; else 0
local rule, span = ARGV[2], tonumber(ARGV[3])
if KEYS[2] then
  for i = 6, #ARGV, 2 do redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1]) end
  if ARGV[5] ~= '' then redis.call('HSET', KEYS[2], rule .. ':t', ARGV[5]) end
  if redis.call('PTTL', KEYS[2]) < 0 then expire(KEYS[2], tonumber(ARGV[4])) end
end
if span == 0 or tonumber(redis.call('HGET', KEYS[1], 'e:' .. rule) or 0) > now then return 0 end
redis.call('HSET', KEYS[1], 'e:' .. rule, integer(now + span))
keep(KEYS[1], span)
return 1
