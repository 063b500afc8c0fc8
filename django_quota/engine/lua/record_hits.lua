-- record_hits: counts hits that a process has decided without the store. It follows repeated.
--
-- KEYS   [1] the status of the subject (see subject_status); [2] the last message about this rule and day that was counted;
--        [3] the counts of the day (see count_day), if the rule has them
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the rule's name in fields; [3] microseconds from one "refused"
--        event to the next; 0: no event; [4] how long counts wait for the roll-up; [5] the tier of the subject under the rule,
--        or ''; [6] the number of the message; then two for each count: its field and by how much it changes
-- reply  1 if a "refused" event is due, which the caller writes; else 0
local rule, span = ARGV[2], tonumber(ARGV[3])
if is_repeated(KEYS[2], tonumber(ARGV[6])) then return 0 end
if KEYS[3] then
  for i = 7, #ARGV, 2 do redis.call('HINCRBY', KEYS[3], ARGV[i], ARGV[i + 1]) end
  if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], rule .. ':t', ARGV[5]) end
  if redis.call('PTTL', KEYS[3]) < 0 then expire(KEYS[3], tonumber(ARGV[4])) end
end
note_counted(KEYS[2], tonumber(ARGV[6]))
if span == 0 or tonumber(redis.call('HGET', KEYS[1], 'e:' .. rule) or 0) > now then return 0 end
redis.call('HSET', KEYS[1], 'e:' .. rule, integer(now + span))
keep(KEYS[1], span)
return 1
