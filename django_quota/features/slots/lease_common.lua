-- lease_common: what the lease scripts share. It comes before each of them, and after clock.
--
-- KEYS   those of the script after it: [1] the leases: a sorted set, token -> when it ends
-- ARGV   [1] now in microseconds, or '' for Redis' own clock; [2] the token that asks
-- reply  that of the script after it
local leases_key, token = KEYS[1], ARGV[2]

local function is_held() return tonumber(redis.call('ZSCORE', leases_key, token) or 0) > now end

-- Lets the lease of the token last for `span` microseconds from now.
local function hold(span)
  redis.call('ZADD', leases_key, integer(now + span), token)
  keep(leases_key, span)
end
