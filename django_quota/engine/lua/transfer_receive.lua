-- transfer_receive: adds a pending amount to a total: once, however often it is delivered.
--
-- KEYS   [1] the total of the destination; [2] its inbox
-- ARGV   [1] now; [2] how much; [3] how long the total lives from now, in microseconds; [4] the id of the transfer
--        [5] when its arrival may be forgotten; [6] when it can no longer be delivered: microseconds
-- reply  {DONE}: it is in the total, by this call or an earlier one; {NO_COUNTER, 1} or {OVERFLOW, 1}: it never can be;
--        {LATE}: its arrival may have been forgotten, and nothing was done
local LATE = -4
local total_key, inbox_key = KEYS[1], KEYS[2]
local id = ARGV[4]
local answers = { [id] = { DONE }, [id .. ' ' .. NO_COUNTER] = { NO_COUNTER, 1 }, [id .. ' ' .. OVERFLOW] = { OVERFLOW, 1 } }
for member, answer in pairs(answers) do
  if tonumber(redis.call('ZSCORE', inbox_key, member) or 0) > now then return answer end
end
if now >= tonumber(ARGV[6]) then return { LATE } end

-- What may be forgotten goes a hundred at a time: no more comes in one call.
local old = redis.call('ZRANGEBYSCORE', inbox_key, '-inf', integer(now), 'LIMIT', 0, 100)
if old[1] then redis.call('ZREM', inbox_key, unpack(old)) end

local function remember(member)
  redis.call('ZADD', inbox_key, ARGV[5], member)
  keep_to_last(inbox_key)
end

local _, problem = read_total(1)
if not problem then
  remember(id)
  local added = redis.pcall('INCRBY', total_key, ARGV[2])
  if not failed(added) then
    expire(total_key, ARGV[3])
    return { DONE }
  end
  redis.call('ZREM', inbox_key, id)
  problem = fault(added, 1)
end
-- An error that is not the key's fault may be over the next time.
if not problem.err then remember(id .. ' ' .. problem[1]) end
return problem
