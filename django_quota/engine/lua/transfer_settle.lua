-- transfer_settle: drops a pending transfer that has arrived; or returns its amount if it never can.
--
-- KEYS   [1] the total of the source; [2] its outbox
-- ARGV   [1] now; [2] how much is returned, or '' if it has arrived; [3] how long the total lives then, in microseconds
--        [4] the pending transfer
-- reply  {DONE, now}, also if it was settled before: then nothing is returned again; {NO_COUNTER, 1} or {OVERFLOW, 1} if the
--        total cannot take it back: it stays pending
local total_key, outbox_key = KEYS[1], KEYS[2]
local amount, note = ARGV[2], ARGV[4]
local stop = redis.call('ZSCORE', outbox_key, note)
if not stop then return { DONE, now } end
redis.call('ZREM', outbox_key, note)
if amount ~= '' then
  local added = redis.pcall('INCRBY', total_key, amount)
  if failed(added) then
    redis.call('ZADD', outbox_key, stop, note)
    keep_to_last(outbox_key)
    return fault(added, 1)
  end
  expire(total_key, ARGV[3])
end
keep_to_last(outbox_key)
return { DONE, now }
