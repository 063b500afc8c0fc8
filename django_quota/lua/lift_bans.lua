-- lift_bans: end the bans of a subject; what was counted for its limits stays. It stands behind clock.
--
-- KEYS   [1] how the subject stands (see standing); [2], where there is one, the index of bans
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; then the rules' names in fields
-- reply  how many bans were in force
local standing_key, bans_key = KEYS[1], KEYS[2]
local subject = string.match(standing_key, '{(.-)}')
local lifted = 0
for i = 2, #ARGV do
  local ban = redis.call('HGET', standing_key, 'b:' .. ARGV[i])
  if ban and tonumber(string.match(ban, '^%d+')) > now then lifted = lifted + 1 end
  redis.call('HDEL', standing_key, 'b:' .. ARGV[i])
  if bans_key then redis.call('ZREM', bans_key, subject .. ' ' .. ARGV[i]) end
end
return lifted
