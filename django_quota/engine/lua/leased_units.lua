-- leased_units: units of a counter that are taken for a lease; those whose lease has ended go back to the total. It
-- follows counter_common.
--
-- KEYS   those of the script or module after it; leased_key: a sorted set of "<lease>:<units>", scored by the end of
--        the lease; total_key: the total of the counter
-- ARGV   those of the script or module after it
-- reply  give_back_ended: how many leases have ended

local function give_back_ended(leased_key, total_key)
  local ended = redis.call('ZRANGEBYSCORE', leased_key, '-inf', integer(now))
  if not ended[1] then return 0 end
  if not is_integer(redis.call('GET', total_key) or '0') then error('not an integer: ' .. total_key, 0) end
  local left = redis.call('PTTL', leased_key)
  for _, member in ipairs(ended) do
    redis.call('ZREM', leased_key, member) -- first: a full server accepts what follows it
    local reply = redis.pcall('INCRBY', total_key, string.match(member, ':(%d+)$'))
    if failed(reply) and not string.find(reply.err, 'overflow', 1, true) then error(reply, 0) end
  end
  if redis.call('PTTL', total_key) < left then redis.call('PEXPIRE', total_key, integer(left)) end
  return #ended
end
