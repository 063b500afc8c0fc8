-- lift_bans: ends the bans of a subject; what its limits counted stays. It follows clock.
--
-- KEYS   [1] the status of the subject (see subject_status); [2], if there is one, the index of bans
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; then the rules' names in fields
-- reply  how many bans were in force
local status_key, bans_key = KEYS[1], KEYS[2]
local subject = string.match(status_key, '{(.-)}')
local lifted = 0
for i = 2, #ARGV do
  local ban = redis.call('HGET', status_key, 'b:' .. ARGV[i])
  if ban and tonumber(string.match(ban, '^%d+')) > now then lifted = lifted + 1 end
  redis.call('HDEL', status_key, 'b:' .. ARGV[i])
  if bans_key then redis.call('ZREM', bans_key, subject .. ' ' .. ARGV[i]) end
end
return lifted
