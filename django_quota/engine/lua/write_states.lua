-- write_states: puts what was copied from another store under keys that do not exist, or drops keys.
--
-- KEYS   the keys
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; then for each key its form, see read_states, when it
--        expires in microseconds, how many words follow, and the words: of a "zset" scores and members, of a "hash"
--        fields and values, of a "string" the string, of a "distinct" the different values; "none" drops the key
-- reply  for each key 0 if it exists already, so that nothing was put there, else 1
local COMMANDS = { zset = 'ZADD', hash = 'HSET', distinct = 'PFADD' }
local A_CALL = 1000 -- words that Lua passes to a command at most

local reply, at = {}, 2
for i, key in ipairs(KEYS) do
  local form, span, count = ARGV[at], ARGV[at + 1] - now, ARGV[at + 2] + 0
  local first, last = at + 3, at + 2 + count
  at, reply[i] = last + 1, 1
  if form == 'none' then
    redis.call('DEL', key)
  elseif span > 0 and redis.call('TYPE', key).ok ~= 'none' then
    reply[i] = 0
  elseif span > 0 and form == 'string' then
    redis.call('SET', key, ARGV[first], 'PX', lifetime(span))
  elseif span > 0 then
    for from = first, last, A_CALL do
      redis.call(COMMANDS[form], key, unpack(ARGV, from, math.min(from + A_CALL - 1, last)))
    end
    expire(key, span)
  end
end
return reply
