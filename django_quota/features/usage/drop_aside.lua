-- drop_aside: deletes counts that were set aside, once the database has them.
--
-- KEYS   [1] the counts that are set aside; see set_aside
-- ARGV   [1] now: not used; [2] their token
-- reply  1 if they were deleted, 0 if they are gone, or if others have been set aside since
local aside_key = KEYS[1]
if redis.call('HGET', aside_key, '#') ~= ARGV[2] then return 0 end
return redis.call('DEL', aside_key)
