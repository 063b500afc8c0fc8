-- leased_units: units of a counter that are taken for a lease; those whose lease has ended go back to the total. It
-- follows open_grants.
--
-- KEYS   those of the script or module after it; leased_key: a sorted set of "<lease>:<units>:<drawn>", scored by the
--        end of the lease, with what was taken of grants; total_key, grants_key: see grants
-- ARGV   those of the script or module after it
-- reply  give_back_ended: how many leases have ended

local function read_drawn(text)
  local drawn = {}
  for expires, units in string.gmatch(text, '(%d+)-(%d+)') do
    drawn[#drawn + 1] = { expires = tonumber(expires), units = tonumber(units) }
  end
  return drawn
end

local function give_back_ended(leased_key, total_key, grants_key)
  local ended = redis.call('ZRANGEBYSCORE', leased_key, '-inf', integer(now))
  if not ended[1] then return 0 end
  local parts = {}
  for i, member in ipairs(ended) do
    parts[i] = { string.match(member, '^[^:]*:(%d+):(.*)$') }
    if not parts[i][1] then error('WRONGTYPE not the units of a lease', 0) end
  end
  if not is_integer(redis.call('GET', total_key) or '0') then error('not an integer: ' .. total_key, 0) end
  local left = redis.call('PTTL', leased_key)
  local grants, problem = open_grants(total_key, grants_key)
  if problem then error(problem, 0) end
  for i, member in ipairs(ended) do
    redis.call('ZREM', leased_key, member) -- first: a full server accepts what follows it
    local reply = need_grants().give_back(grants, tonumber(parts[i][1]), read_drawn(parts[i][2]))
    if reply and not string.find(reply.err, 'overflow', 1, true) then error(reply, 0) end
    if not reply then grants.expired = 0 end
  end
  -- Nothing went back: what has expired is still in the total.
  if grants.expired > 0 then need_grants().lower(grants) end
  if redis.call('PTTL', total_key) < left then redis.call('PEXPIRE', total_key, integer(left)) end
  need_grants().write(grants, 1000 * redis.call('PTTL', total_key) - 1000 * grace)
  return #ended
end
