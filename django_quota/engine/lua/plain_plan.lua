-- plain_plan: decides the check that most requests make: sliding windows without options, which all allow it and emit
-- nothing. Part of decide, before everything that it does not need.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  decide_plain: that of decide, and the days to count {key, rule, cost, tier, ...}, if any; nil if the plan is
--        not plain: then nothing has changed
--
-- The frame would decide such a plan in the same way, but making its functions and tables, and calling them, takes
-- a third as long again for one limit, and three quarters for three.

local function decide_plain()
  local ARGV, KEYS = ARGV, KEYS
  local last_argument = #ARGV
  local read, keys_read = 3, 0
  local found, days = { nil }, nil
  while read < last_argument do
    local rule = ARGV[read + 1]
    local cost = ARGV[read + 2] + 0
    local warn = ARGV[read + 3] / 1000
    if cost == 0 then return end
    local last_key = keys_read + 1 + ARGV[read + 4]
    local is_near = false
    keys_read = keys_read + 1
    read = read + 4
    while keys_read < last_key do
      if ARGV[read + 1] ~= 'sliding_window' then return end
      keys_read = keys_read + 1
      local key = KEYS[keys_read]
      local capacity = ARGV[read + 2] + 0
      -- The arguments of add_entry: key, cost, capacity, window, slice, and what read_entries returns.
      local limit = { key, cost, capacity, ARGV[read + 3] + 0, ARGV[read + 4] + 0, read_entries(key) }
      local used = limit[6]
      if used + cost > capacity then return end
      local threshold = capacity * warn
      if warn > 0 and used + cost >= threshold then
        if used < threshold then return end
        is_near = true
      end
      found[#found + 1] = limit
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
      days = days or {}
      local n = #days
      days[n + 1] = KEYS[keys_read]
      days[n + 2] = rule
      days[n + 3] = cost
      days[n + 4] = ARGV[read + 3]
      read = read + 4
    end
    if ARGV[read] ~= '' then return end
  end
  local reply = struct.pack('<i8i8', now, 1)
  for n = 1, #found do
    reply = reply .. struct.pack('<i8i8i8i8i8', 1, add_entry(unpack(found[n], 1, 12)))
  end
  return reply, days
end
