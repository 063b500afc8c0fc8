-- transfer_send: takes an amount off a total, and notes that it is pending for a total in another slot.
--
-- KEYS   [1] the total of the source; [2] its outbox
-- ARGV   [1] now; [2] how much: a whole number from 0 to 2^63 - 1; [3] how long the total lives from now, in microseconds
--        [4] the pending transfer; [5] how long it can be resumed; [6] from which age it is overdue: in microseconds
--        [7] how many overdue ones are named at most
-- reply  {DONE, now}; {REFUSED, now} if the source has less; then for each overdue one: the transfer, and until when
local total_key, outbox_key = KEYS[1], KEYS[2]
local amount, kept = ARGV[2], tonumber(ARGV[5])
local total, problem = read_total(1)
if problem then return problem end
local is_enough = at_least(total, amount)
local reply = append_overdue({ is_enough and DONE or REFUSED, now }, outbox_key, kept, tonumber(ARGV[6]), 0, ARGV[7])
if not is_enough then return reply end
-- Write the outbox first: nothing after it can fail.
redis.call('ZADD', outbox_key, integer(now + kept), ARGV[4])
redis.call('DECRBY', total_key, amount)
expire(total_key, ARGV[3])
keep_to_last(outbox_key)
return reply
