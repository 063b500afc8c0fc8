-- event_log: the event stream, the stream of bans, and the index of bans. Part of decide (module events) and of append_events.
--
-- KEYS   the last three, if the log is in this slot: events_key: a stream; bans_key: a sorted set of "<subject> <rule>", scored by
--        the end of the ban; banned_key: a stream of the bans of the first alone, under the same ids, which refusals do not trim
-- ARGV   [3] how many events the streams keep
-- reply  append_event, index_ban: nothing
local events_key, bans_key, banned_key = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local stream_length = ARGV[3]
local EVENTS_TTL = 400 * 86400000000

local function append_event(kind, rule, subject, stop, level, capacity, remaining)
  local fields = { 'kind', kind, 'rule', rule, 'subject', subject, 'until', integer(stop), 'level', level,
    'capacity', integer(capacity), 'remaining', integer(remaining) }
  local id = redis.call('XADD', events_key, 'MAXLEN', '~', stream_length, '*', unpack(fields))
  expire(events_key, EVENTS_TTL)
  if kind ~= 'banned' then return end
  local added = redis.pcall('XADD', banned_key, 'MAXLEN', '~', stream_length, id, unpack(fields))
  if type(added) == 'table' then
    -- If the event stream was deleted and the clock stepped back, the id may be lower than the last one here.
    if not string.find(added.err, 'equal or smaller', 1, true) then error(added.err, 0) end
    redis.call('XADD', banned_key, 'MAXLEN', '~', stream_length, '*', unpack(fields))
  end
  expire(banned_key, EVENTS_TTL)
end

local function index_ban(rule, subject, stop)
  redis.call('ZADD', bans_key, integer(stop), subject .. ' ' .. rule)
  -- Each new ban removes some that have ended, so that the index does not grow.
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', bans_key, '-inf', integer(now), 'LIMIT', 0, 10)) do
    redis.call('ZREM', bans_key, ended)
  end
  keep(bans_key, stop - now)
end
