-- ban: bans a subject under a rule, unless it is banned for longer already. It follows clock.
--
-- KEYS   [1] the status of the subject (see subject_status)
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the rule's name in fields; [3] how long the ban
--        lasts, and [4] how long it is remembered after its end: microseconds
-- reply  when the ban ends (microseconds), and the number of the ban in its series; 0 if nothing has changed
local status_key, field = KEYS[1], 'b:' .. ARGV[2]
local ends, level, remembered = string.match(redis.call('HGET', status_key, field) or '', '^(%d+) (%d+) (%d+)$')
ends, level, remembered = tonumber(ends or 0), tonumber(level or 0), tonumber(remembered or 0)
local stop = now + ARGV[3]
if ends >= stop then return { ends, 0 } end
-- A ban that is only made longer stays the same one in its series.
if ends <= now then level = remembered > now and level + 1 or 1 end
remembered = stop + ARGV[4]
redis.call('HSET', status_key, field, integer(stop) .. ' ' .. integer(level) .. ' ' .. integer(remembered))
keep(status_key, remembered - now)
return { stop, level }
