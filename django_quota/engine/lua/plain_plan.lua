-- plain_plan: decides the check that most requests make: sliding windows without options, which all allow it and emit
-- nothing. Part of decide, before the frame.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  decide_plain: that of decide; nil, and nothing has changed, if the plan is another one
--
-- The frame would decide such a plan in the same way, but making its functions and tables takes as long as all of this.

local function decide_plain()
  local limits, days, is_near, read, keys_read = { nil }, nil, false, 3, 0
  while read < #ARGV do
    local rule, cost, warn = ARGV[read + 1], ARGV[read + 2] + 0, ARGV[read + 3] + 0
    if cost == 0 then return end
    local last_key = keys_read + 1 + ARGV[read + 4]
    keys_read, read = keys_read + 1, read + 4
    while keys_read < last_key do
      if ARGV[read + 1] ~= 'sliding_window' then return end
      keys_read = keys_read + 1
      local key, capacity = KEYS[keys_read], ARGV[read + 2] + 0
      local used, expiry, has_expired, total, last, last_cost, first_expiry = read_entries(key)
      local threshold = capacity * warn
      if used + cost > capacity then return end
      if warn > 0 and (used + cost) * 1000 >= threshold then
        if used * 1000 < threshold then return end
        is_near = true
      end
      limits[#limits + 1] = {
        key, cost, capacity, ARGV[read + 3] + 0, ARGV[read + 4] + 0, used, expiry, has_expired, total, last, last_cost,
        first_expiry,
      }
      read = read + 4
    end
    read = read + 1
    if ARGV[read] == 'shares' then
      if is_near then return end
      read = read + 2
    end
    if ARGV[read] == 'day' then
      keys_read = keys_read + 1
      if now < ARGV[read + 1] + 0 or now >= ARGV[read + 2] + 0 then return end
      days, read = days or {}, read + 3
      local n = #days
      days[n + 1], days[n + 2], days[n + 3] = KEYS[keys_read], rule, cost
    end
    if ARGV[read] ~= '' then return end
  end
  local reply = struct.pack('<i8i8i8i8i8i8i8', now, 1, 1, add_entry(unpack(limits[1], 1, 12)))
  for n = 2, #limits do reply = reply .. struct.pack('<i8i8i8i8i8', 1, add_entry(unpack(limits[n], 1, 12))) end
  if days then
    for n = 1, #days, 3 do count_day(days[n], days[n + 1], ':a', days[n + 2]) end
  end
  return reply
end
