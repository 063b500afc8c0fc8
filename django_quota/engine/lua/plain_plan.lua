-- plain_plan: decides the check that most requests make: sliding windows without options, which all allow it and emit
-- nothing. Part of decide, before all that it does not need.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  decide_plain: that of decide, and the days to count {key, rule, cost, tier, ...}, if any; nil, and nothing has changed, if the
--        plan is another one
--
-- It reads and writes entries as sliding_entries does, which says what they mean. A total that has wrapped is above any cost,
-- so one that equals the cost of its entry says that nothing was counted before. The frame would decide such a plan in the
-- same way, but making its functions and tables, and calling them, takes half as long again.

local function decide_plain()
  local ARGV, KEYS, call = ARGV, KEYS, redis.call
  local found, size, days, read, keys_read, last_argument = { nil }, 0, nil, 3, 0, #ARGV
  while read < last_argument do
    local rule, cost, warn = ARGV[read + 1], ARGV[read + 2] + 0, ARGV[read + 3] / 1000
    if cost == 0 then return end
    local last_key, is_near = keys_read + 1 + ARGV[read + 4], false
    keys_read, read = keys_read + 1, read + 4
    while keys_read < last_key do
      if ARGV[read + 1] ~= 'sliding_window' then return end
      keys_read = keys_read + 1
      local key, capacity, window, slice = KEYS[keys_read], ARGV[read + 2] + 0, ARGV[read + 3] + 0, ARGV[read + 4] + 0
      local expiry = now + window
      if slice > 0 then expiry = expiry - now % slice + slice - 1 end
      local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
      local used, total, sum, replaced, first_expiry = 0, 0, cost, nil, expiry
      local last_expiry = last[2] and last[2] + 0 or 0
      local has_expired = last_expiry > 0 and last_expiry <= now
      if last_expiry > now then
        local last_total, last_cost = string.match(last[1], '^(%d+):(%d+)$')
        total = last_total + 0
        if last_total == last_cost then
          used, first_expiry = total, last_expiry
        else
          local first = call('ZRANGE', key, '0', '0', 'WITHSCORES')
          has_expired = first[2] + 0 <= now
          if has_expired then
            first = call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
          end
          local first_total, first_cost = string.match(first[1], '^(%d+):(%d+)$')
          used, first_expiry = total - first_total + first_cost, first[2] + 0
        end
        if used == 0 then
          first_expiry = expiry
        elseif last_expiry >= expiry then
          expiry = last_expiry
          if last_cost ~= '0' then sum, replaced = last_cost + cost, last[1] end
        end
      end
      total = total + cost
      local remaining, threshold = capacity - used - cost, capacity * warn
      if used < 0 or remaining < 0 or total >= 100000000 then return end
      if warn > 0 and used + cost >= threshold then
        if used < threshold then return end
        is_near = true
      end
      found[size + 1], found[size + 2], found[size + 3], found[size + 4] = key, expiry, string.format('%d:%d', total, sum), replaced
      found[size + 5], found[size + 6], found[size + 7] = has_expired, remaining, first_expiry
      size, read = size + 7, read + 4
    end
    read = read + 1
    if ARGV[read] == 'shares' then
      if is_near then return end
      read = read + 2
    end
    if ARGV[read] == 'day' then
      keys_read = keys_read + 1
      if now < ARGV[read + 1] + 0 or now >= ARGV[read + 2] + 0 then return end
      days, read = days or {}, read + 4
      local n = #days
      days[n + 1], days[n + 2], days[n + 3], days[n + 4] = KEYS[keys_read], rule, cost, ARGV[read - 1]
    end
    if ARGV[read] ~= '' then return end
  end
  local reply
  for n = 1, size, 7 do
    local key, expiry, member, replaced, has_expired, remaining, first_expiry = unpack(found, n, n + 6)
    -- Add first: a full server refuses a script's first write, and accepts later ones.
    call('ZADD', key, string.format('%d%08d', expiry / 100000000, expiry % 100000000), member)
    if replaced then
      call('ZREM', key, replaced)
    else
      local ttl = (expiry - now + 999) / 1000 + grace
      call('PEXPIRE', key, ttl < 100000000 and string.format('%d', ttl) or string.format('%.0f', math.floor(ttl)))
    end
    if has_expired then call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now)) end
    if reply then
      reply = reply .. struct.pack('<i8i8i8i8i8', 1, remaining, 0, expiry - now, first_expiry - now)
    else
      reply = struct.pack('<i8i8i8i8i8i8i8', now, 1, 1, remaining, 0, expiry - now, first_expiry - now)
    end
  end
  return reply, days
end
