-- counter_days: read the tallies of a range of days.
--
-- KEYS   the days of each month of the range
-- ARGV   [1] now: not used; [n + 1] the first and the last day of KEYS[n] that are asked, "<first> <last>"
-- reply  {DONE, the tally of each day as a text, in order: 0 where there is none}
local reply = { DONE }
for n, key in ipairs(KEYS) do
  local first, last = string.match(ARGV[n + 1], '^(%d+) (%d+)$')
  local fields = {}
  for day = tonumber(first), tonumber(last) do fields[#fields + 1] = string.format('%02d', day) end
  local tallies = redis.pcall('HMGET', key, unpack(fields))
  if failed(tallies) then return fault(tallies, n) end
  for _, tally in ipairs(tallies) do
    if tally and not is_whole(tally) then return { NO_COUNTER, n } end
    reply[#reply + 1] = tally or '0'
  end
end
return reply
