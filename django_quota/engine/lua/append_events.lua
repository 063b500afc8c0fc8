-- append_events: writes events that decisions in other slots reported. It follows clock and event_log.
--
-- KEYS   [1] the event stream; [2] the index of bans
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] how many events there are; [3] how many the stream
--        keeps; then eight for each: its kind ("refused", "banned", "near", or "lifted": takes a ban off the index, and
--            writes no event), the rule's name in fields, the subject as keys have it, until when,
--            the number of the ban in its series, the limit's capacity, what is left of it, and the share of `warn_at`
--            that it has reached
-- reply  the number of events
for i = 4, #ARGV, 8 do
  local kind, rule, subject, stop = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  if kind == 'lifted' then
    redis.call('ZREM', bans_key, subject .. ' ' .. rule)
  else
    if kind == 'banned' then index_ban(rule, subject, stop) end
    append_event(kind, rule, subject, stop, tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]),
      ARGV[i + 7])
  end
end
return tonumber(ARGV[2])
