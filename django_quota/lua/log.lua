-- log: the event stream and the index of bans. A part of decide, and of announce.
--
-- KEYS   events_key: a stream; bans_key: a sorted set of "<subject> <rule>", scored by the end of the ban
-- ARGV   as the script that it is a part of
-- reply  publish, index_ban: nothing
local EVENTS_KEPT = 400 * 86400000000

local function publish(kind, rule, subject, stop, level, capacity, remaining)
  redis.call('XADD', events_key, 'MAXLEN', '~', stream_length, '*', 'kind', kind, 'rule', rule, 'subject', subject,
    'until', integer(stop), 'level', level, 'capacity', integer(capacity), 'remaining', integer(remaining))
  expire(events_key, EVENTS_KEPT)
end

local function index_ban(rule, subject, stop)
  redis.call('ZADD', bans_key, integer(stop), subject .. ' ' .. rule)
  -- Each that begins takes some that have ended along: so the index stays as large as there are bans.
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', bans_key, '-inf', integer(now), 'LIMIT', 0, 10)) do
    redis.call('ZREM', bans_key, ended)
  end
  keep(bans_key, stop - now)
end
