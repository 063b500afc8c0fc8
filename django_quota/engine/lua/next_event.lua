-- next_event: hands a consumer the next entry of its group, or the next ban that the event stream lost before it.
--
-- One script does both: a flood trims the stream at any time, and would take a ban between a look and a read. While the
-- group reads nothing new, each consumer that begins finds all lost bans, so none is lost with its consumer.
--
-- KEYS   [1] the event stream; [2] the stream of bans alone
-- ARGV   [1] now: not used; [2] the group; [3] the consumer; [4] the last lost ban that the consumer was handed
-- reply  {what, read, entries}: "new", "ban", or "behind" if the stream was trimmed past what was read; the id up to which the
--        group had read; at most one entry
local events_key, banned_key = KEYS[1], KEYS[2]
local read = '0-0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', events_key)) do
  local of = {}
  for at = 1, #group, 2 do of[group[at]] = group[at + 1] end
  if of['name'] == ARGV[2] then read = of['last-delivered-id'] end
end
local function numbers(id) return string.match(id, '^(%d+)-(%d+)$') end
local function is_later(one, other)
  local time, number = numbers(one)
  local other_time, other_number = numbers(other)
  if time ~= other_time then return tonumber(time) > tonumber(other_time) end
  return tonumber(number) > tonumber(other_number)
end
local what = 'new'
if read == '0-0' or not redis.call('XRANGE', events_key, read, read)[1] then
  if read ~= '0-0' then what = 'behind' end
  local after = is_later(ARGV[4], read) and ARGV[4] or read
  local first = redis.call('XRANGE', events_key, '-', '+', 'COUNT', 1)[1]
  local bans = redis.call('XRANGE', banned_key, '(' .. after, first and '(' .. first[1] or '+', 'COUNT', 1)
  if bans[1] then return { 'ban', read, bans } end
end
-- Trimming drops the oldest entries first: while the last one that was read is there, nothing after it is missing.
local found = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', 1, 'STREAMS', events_key, '>')
return { what, read, found and found[1] and found[1][2] or {} }
