-- register_worker: records that this worker is alive, and counts how many are.
--
-- KEYS   [1] the workers: a sorted set of tokens, scored by when they are no longer counted
-- ARGV   [1] now; [2] the token of this worker; [3] how long it is counted, in microseconds
-- reply  how many there are, this one included
local workers_key = KEYS[1]
local token, span = ARGV[2], tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', workers_key, '-inf', integer(now))
redis.call('ZADD', workers_key, integer(now + span), token)
keep(workers_key, span)
return redis.call('ZCARD', workers_key)
