-- server_version: refuses a server that is too old: Redis names its version to scripts since 7.0, Valkey since its
-- first. Every script begins with it.
--
-- KEYS   those of the script after it
-- ARGV   those of the script after it
-- reply  an error with the version of a server that is too old, or of one that has no library `struct`, which every
--        Redis has; else that of the script after it
if not redis.REDIS_VERSION then
  if not struct then return redis.error_reply('NOSTRUCT') end
  local info = redis.pcall('INFO', 'server')
  local version = type(info) == 'string' and string.match(info, 'redis_version:(%S+)')
  return redis.error_reply('TOOOLD ' .. (version or 'older than 7.0'))
end
