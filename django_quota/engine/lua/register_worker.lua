-- register_worker: notes that this worker is alive, and counts how many are.
--
-- KEYS   [1] the workers: a sorted set of tokens, scored by when they are no longer counted
-- ARGV   [1] now; [2] the token of this worker; [3] how long it is counted, in microseconds
-- reply  how many there are, this one included
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', integer(now))
redis.call('ZADD', KEYS[1], integer(now + tonumber(ARGV[3])), ARGV[2])
keep(KEYS[1], tonumber(ARGV[3]))
return redis.call('ZCARD', KEYS[1])
