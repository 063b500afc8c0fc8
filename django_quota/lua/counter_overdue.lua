-- counter_overdue: name what has been on the way for long.
--
-- KEYS   [1] the outbox
-- ARGV   [1] now; [2] for how long a note is carried on; [3] from which age on it is overdue: in microseconds
--        [4] how many of the oldest are skipped; [5] how many are named at most
-- reply  {DONE, now}, and behind them the overdue notes, the oldest first, each with until when it is carried on
local outbox_key = KEYS[1]
return append_overdue({ DONE, now }, outbox_key, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5])
