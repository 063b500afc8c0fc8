-- record_hits: counts hits that a process has decided without the store. It follows repeated.
--
-- KEYS   [1] the status of the subject (see subject_status); [2] the last message about this rule and day that was
--            counted
--        [3] the counts of the day (see count_day), if the rule has them
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the rule's name in fields; [3] microseconds from one
--        "refused" event to the next; 0: no event; [4] how long counts wait for the roll-up; [5] the tier of the
--        subject under the rule, or ''; [6] the number of the message; [7] until when it is remembered, in
--        microseconds; 0: for an hour; then two for each count: its field and by how much it changes
-- reply  1 if a "refused" event is due, which the caller writes; else 0
local status_key, message_key, day_key = KEYS[1], KEYS[2], KEYS[3]
local rule, span = ARGV[2], tonumber(ARGV[3])
local day_ttl, tier, message = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local stop = tonumber(ARGV[7])
if is_repeated(message_key, message) or (stop > 0 and stop <= now) then return 0 end
if day_key then
  for i = 8, #ARGV, 2 do redis.call('HINCRBY', day_key, ARGV[i], ARGV[i + 1]) end
  if tier ~= '' then redis.call('HSET', day_key, rule .. ':t', tier) end
  if redis.call('PTTL', day_key) < 0 then expire(day_key, day_ttl) end
end
note_counted(message_key, message, stop > 0 and stop - now or SENT_TTL)
if span == 0 then return 0 end
local quiet_until = tonumber(redis.call('HGET', status_key, 'e:' .. rule) or 0)
if quiet_until > now then return 0 end
redis.call('HSET', status_key, 'e:' .. rule, integer(now + span))
keep(status_key, span)
return 1
