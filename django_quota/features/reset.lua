-- reset: drops all that rules have counted for subjects, and lifts their bans.
--
-- KEYS   for each rule and subject: the status of the subject (see subject_status), then all its states; last, if there
--        is one more key, the index of bans
-- ARGV   [1] now: not used
--        then two for each of them: the rule's name in fields, the number of its states
-- reply  how many states and bans there were
local dropped, keys_read = 0, 0
local bans = {}
for i = 2, #ARGV, 2 do
  local status_key, rule = KEYS[keys_read + 1], ARGV[i]
  local states = tonumber(ARGV[i + 1])
  for n = 2, states + 1 do dropped = dropped + redis.call('DEL', KEYS[keys_read + n]) end
  keys_read = keys_read + states + 1
  if redis.call('HDEL', status_key, 'b:' .. rule) == 1 then
    dropped = dropped + 1
    bans[#bans + 1] = string.match(status_key, '{(.-)}') .. ' ' .. rule
  end
  redis.call('HDEL', status_key, 'e:' .. rule, 'w:' .. rule)
end
local bans_key = KEYS[keys_read + 1]
if bans_key then
  for _, ban in ipairs(bans) do redis.call('ZREM', bans_key, ban) end
end
return dropped
