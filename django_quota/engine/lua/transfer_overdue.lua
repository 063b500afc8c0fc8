-- transfer_overdue: names overdue transfers.
--
-- KEYS   [1] the outbox
-- ARGV   [1] now; [2] how long a transfer can be resumed; [3] from which age it is overdue: in microseconds
--        [4] how many of the oldest are skipped; [5] how many are named at most
-- reply  {DONE, now}, then the overdue transfers, the oldest first, each with until when it can be resumed
local outbox_key = KEYS[1]
return append_overdue({ DONE, now }, outbox_key, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5])
