-- sliding_wait: how long until a sliding window that was peeked has room. A module of decide.
--
-- KEYS   limit.key: see sliding_window
-- ARGV   as decide
-- reply  a function: microseconds until `needed` units are free again; it finds their last entry by bisection
return function(limit, needed)
  if limit.first_cost >= needed then return limit.first_expiry - now end
  local low = redis.call('ZCOUNT', limit.key, '-inf', integer(now)) + 1
  local high = redis.call('ZCARD', limit.key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('ZRANGE', limit.key, middle, middle)
    local total = tonumber(string.match(entry[1], '^%d+'))
    if (total - limit.total + limit.used) % WRAP >= needed then high = middle else low = middle + 1 end
  end
  return tonumber(redis.call('ZRANGE', limit.key, low, low, 'WITHSCORES')[2]) - now
end
