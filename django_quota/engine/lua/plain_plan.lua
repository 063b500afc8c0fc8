-- plain_plan: decides the check that most requests make: sliding windows without options, of subjects without a status, that
-- all allow it and emit nothing. Part of decide, before the frame.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  decide_plain: that of decide; nil, and nothing has changed, if the plan is another one
--
-- The frame would decide such a plan alike. But to make its functions and tables takes as long as all that is done here.

local function decide_plain()
  local limits, days, read, keys_read, status_key = { nil }, nil, 3, 0, nil
  while read < #ARGV do
    local rule, cost, warn = ARGV[read + 1], ARGV[read + 2] + 0, ARGV[read + 3] + 0
    if cost == 0 then return end
    if KEYS[keys_read + 1] ~= status_key then
      status_key = KEYS[keys_read + 1]
      if redis.call('HLEN', status_key) > 0 then return end
    end
    local last_key = keys_read + 1 + ARGV[read + 4]
    keys_read, read = keys_read + 1, read + 4
    while keys_read < last_key do
      if ARGV[read + 1] ~= 'sliding_window' then return end
      keys_read = keys_read + 1
      local key, capacity = KEYS[keys_read], ARGV[read + 2] + 0
      local used, expiry, has_expired, total, last, last_cost, first_expiry = read_entries(key)
      local threshold = capacity * warn
      if used + cost > capacity then return end
      if warn > 0 and used * 1000 < threshold and (used + cost) * 1000 >= threshold then return end
      limits[#limits + 1] = {
        key, cost, capacity, ARGV[read + 3] + 0, ARGV[read + 4] + 0, used, expiry, has_expired, total, last, last_cost,
        first_expiry,
      }
      read = read + 4
    end
    read = read + 1
    if ARGV[read] == 'day' then
      keys_read = keys_read + 1
      if now < ARGV[read + 1] + 0 or now >= ARGV[read + 2] + 0 then return end
      days, read = days or {}, read + 3
      days[#days + 1], days[#days + 2] = KEYS[keys_read], rule .. ':a'
    end
    if ARGV[read] ~= '' then return end
  end
  local reply = struct.pack('<i8i8i8i8i8i8i8', now, 1, 1, add_entry(unpack(limits[1], 1, 12)))
  for n = 2, #limits do reply = reply .. struct.pack('<i8i8i8i8i8', 1, add_entry(unpack(limits[n], 1, 12))) end
  if days and ARGV[2] == 'check' then
    for n = 1, #days, 2 do count_day(days[n], days[n + 1]) end
  end
  return reply
end
