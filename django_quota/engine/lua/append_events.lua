-- append_events: writes the events that decisions reported. It follows clock and lifetimes.
--
-- KEYS   [1] the event stream; [2] the index of bans: a sorted set of "<subject> <rule>", scored by the end of the ban
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] how many events there are; [3] how many the stream
--        keeps; [4] for how long, in microseconds; then for each event a word for each of FIELDS: its kind ("refused",
--        "banned", "near"; or "lifted", which takes a ban off the index, or "listed", which puts one there, without an
--        event), the rule's name in fields, the subject as keys have it, until when, the number of the ban in its
--        series, the limit's capacity, what is left of it, the share of `warn_at` that it has reached, the cost of the
--        hit, of its request the user, the method and the path, and the reason of a ban that somebody set, or why
--        a hit was refused though no limit was used up
-- reply  the number of events
local events_key, bans_key = KEYS[1], KEYS[2]
local length, span = ARGV[3], tonumber(ARGV[4])
local FIELDS = {
  'kind', 'rule', 'subject', 'until', 'level', 'capacity', 'remaining', 'share', 'cost', 'user', 'method', 'path',
  'reason',
}

local function append(first)
  local words = { nil }
  for i, name in ipairs(FIELDS) do
    words[2 * i - 1] = name
    words[2 * i] = ARGV[first + i - 1]
  end
  redis.call('XADD', events_key, 'MAXLEN', '~', length, '*', unpack(words))
end

local function index_ban(member, stop)
  redis.call('ZADD', bans_key, stop, member)
  -- Each new ban removes some that have ended, so that the index does not grow.
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', bans_key, '-inf', integer(now), 'LIMIT', 0, 10)) do
    redis.call('ZREM', bans_key, ended)
  end
  keep(bans_key, tonumber(stop) - now)
end

local appends = false
for first = 5, #ARGV, #FIELDS do
  local kind, ban = ARGV[first], ARGV[first + 2] .. ' ' .. ARGV[first + 1]
  if kind == 'lifted' then
    redis.call('ZREM', bans_key, ban)
  else
    if kind == 'banned' or kind == 'listed' then index_ban(ban, ARGV[first + 3]) end
    if kind ~= 'listed' then
      append(first)
      appends = true
    end
  end
end
if appends then
  -- The ids are by the clock of Redis, even where a test passes the time in.
  local time = redis.call('TIME')
  redis.call('XTRIM', events_key, 'MINID', integer(time[1] * 1000 + time[2] / 1000 - span / 1000))
  expire(events_key, span)
end
return tonumber(ARGV[2])
