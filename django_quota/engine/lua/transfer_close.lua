-- transfer_close: remembers for less long that an amount has arrived, or never can: it is no longer pending.
--
-- KEYS   [1] the inbox
-- ARGV   [1] now: not used; [2] the id of the transfer; [3] when it may be forgotten, in microseconds
-- reply  {DONE}
local inbox_key = KEYS[1]
local id = ARGV[2]
for _, member in ipairs({ id, id .. ' ' .. NO_COUNTER, id .. ' ' .. OVERFLOW }) do
  if tonumber(redis.call('ZSCORE', inbox_key, member) or 0) > tonumber(ARGV[3]) then
    redis.call('ZADD', inbox_key, ARGV[3], member)
    keep_to_last(inbox_key)
  end
end
return { DONE }
