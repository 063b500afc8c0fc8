-- counter_days: reads the counts of a range of days.
--
-- KEYS   the days of each month of the range
-- ARGV   [1] now: not used; [n + 1] the first and the last day of KEYS[n], "<first> <last>"
-- reply  {DONE, then for each month the counts of its days as one string, in order and with spaces between; 0 for a
--        day without a count}
local fields = {}
for day = 1, 31 do fields[day] = string.format('%02d', day) end

local reply = { DONE }
for n, key in ipairs(KEYS) do
  local first, last = string.match(ARGV[n + 1], '^(%d+) (%d+)$')
  local counts = redis.pcall('HMGET', key, unpack(fields, tonumber(first), tonumber(last)))
  if failed(counts) then return fault(counts, n) end
  for index, count in ipairs(counts) do
    if not count then
      counts[index] = '0'
    elseif not is_integer(count) then
      return { NO_COUNTER, n }
    end
  end
  reply[n + 1] = table.concat(counts, ' ')
end
return reply
