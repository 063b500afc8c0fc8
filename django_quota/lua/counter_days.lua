-- counter_days: read the tallies of a range of days.
--
-- KEYS   the days of each month of the range
-- ARGV   [1] now: not used; [n + 1] the first and the last day of KEYS[n] that are asked, "<first> <last>"
-- reply  {DONE, for each month the tallies of its days as one text, in order and with spaces between: 0 where there is none}
local fields = {}
for day = 1, 31 do fields[day] = string.format('%02d', day) end

local reply = { DONE }
for n, key in ipairs(KEYS) do
  local first, last = string.match(ARGV[n + 1], '^(%d+) (%d+)$')
  local tallies = redis.pcall('HMGET', key, unpack(fields, tonumber(first), tonumber(last)))
  if failed(tallies) then return fault(tallies, n) end
  for index, tally in ipairs(tallies) do
    if not tally then
      tallies[index] = '0'
    elseif not is_whole(tally) then
      return { NO_COUNTER, n }
    end
  end
  reply[n + 1] = table.concat(tallies, ' ')
end
return reply
