-- event_log: the event stream and the index of bans. Part of decide (module events) and of append_events.
--
-- KEYS   the last two, if the log is in this slot: events_key: a stream; bans_key: a sorted set of "<subject> <rule>",
--        scored by the end of the ban
-- ARGV   [3] how many events the stream keeps
-- reply  append_event, index_ban: nothing
local events_key, bans_key = KEYS[#KEYS - 1], KEYS[#KEYS]
local stream_length = ARGV[3]
local EVENTS_TTL = 400 * 86400000000

local function append_event(kind, rule, subject, stop, level, capacity, remaining, share)
  redis.call('XADD', events_key, 'MAXLEN', '~', stream_length, '*', 'kind', kind, 'rule', rule, 'subject', subject,
    'until', integer(stop), 'level', level, 'capacity', integer(capacity), 'remaining', integer(remaining),
    'share', share)
  expire(events_key, EVENTS_TTL)
end

local function index_ban(rule, subject, stop)
  redis.call('ZADD', bans_key, integer(stop), subject .. ' ' .. rule)
  -- Each new ban removes some that have ended, so that the index does not grow.
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', bans_key, '-inf', integer(now), 'LIMIT', 0, 10)) do
    redis.call('ZREM', bans_key, ended)
  end
  keep(bans_key, stop - now)
end
