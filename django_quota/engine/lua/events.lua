-- events: what happens around a decision: the counts of the day, bans after too many refusals, events. A part of decide.
--
-- KEYS   hit.day_key: a hash of the subject and day; fields <rule>:a (allowed), <rule>:r (refused), '#' (when it was opened:
--          tells it from one that was lost)
--        hit.refusals_key: the refusals that lead to a ban, as sliding_window keeps them
--        hit.status_key: see subject_status
--        the log, if it is in this slot: see event_log
-- ARGV   as decide
-- reply  count_day, emit: nothing; emit adds flags

local DAY_TTL = 8 * DAY -- so long the counts of a day wait for the roll-up

local function add_flag(flags, hit, what, stop)
  flags[#flags + 1], flags[#flags + 2], flags[#flags + 3] = hit.index, what, stop
end

local function count_day(hit, passed)
  if not hit.day_key or not (passed or hit.refused) then return end
  local key = hit.day_key
  if redis.call('HINCRBY', key, hit.rule .. (hit.refused and ':r' or ':a'), 1) == 1 then
    if redis.call('HSETNX', key, '#', integer(now)) == 1 then expire(key, DAY_TTL) end
  end
end

local function subject_of(hit) return string.match(hit.status_key, '{(.-)}') end

-- If the log is in another slot, the flags report the event, and the caller writes it.
local function append_event_of(kind, hit, limit, stop, level)
  if events_key then append_event(kind, hit.rule, subject_of(hit), stop, level, limit.capacity, limit.remaining) end
end

-- Says whether an event may be emitted again; if so, the next one may `span` from now.
local function should_emit(hit, field, span)
  local quiet = redis.call('HGET', hit.status_key, field)
  if quiet and tonumber(quiet) > now then return false end
  redis.call('HSET', hit.status_key, field, integer(now + span))
  keep(hit.status_key, span)
  return true
end

-- Counts a refusal. If it is one too many, a ban begins, longer than an earlier one that is still remembered.
local function count_refusal(hit, flags)
  local capacity, a, b, spans = string.match(hit.ban, '^(%d+);(%d+);(%d+);(%S+)$')
  local refusals = { key = hit.refusals_key, cost = 1, capacity = tonumber(capacity), a = tonumber(a), b = tonumber(b) }
  local sliding = algorithms.sliding_window
  local _, left = sliding.peek(refusals, now)
  if left > 1 then
    sliding.consume(refusals, now)
    return false
  end
  redis.call('DEL', hit.refusals_key)
  local lengths = {}
  for length in string.gmatch(spans, '%d+') do lengths[#lengths + 1] = tonumber(length) end
  local level = (hit.remembered or 0) > now and hit.level + 1 or 1
  local stop = now + lengths[math.min(level, #lengths)]
  local remembered = stop + lengths[#lengths]
  redis.call('HSET', hit.status_key, 'b:' .. hit.rule,
    integer(stop) .. ' ' .. integer(level) .. ' ' .. integer(remembered))
  keep(hit.status_key, remembered - now)
  for _, limit in ipairs(hit) do shut_out(limit, stop) end
  add_flag(flags, hit, BANNED, stop)
  if emits then
    add_flag(flags, hit, BAN_BEGAN, stop)
    if bans_key then
      index_ban(hit.rule, subject_of(hit), stop)
      append_event_of('banned', hit, hit[1], stop, level)
    else
      add_flag(flags, hit, BAN_LEVEL, level)
    end
  end
  return true
end

-- The limit that refuses longest.
local function refusing(hit)
  local longest
  for _, limit in ipairs(hit) do
    if not limit.allowed then
      local wait = limit.retry_after == NEVER and math.huge or limit.retry_after
      if not longest or wait > longest.sort then
        limit.sort = wait
        longest = limit
      end
    end
  end
  return longest
end

-- The first limit whose use has just passed `warn_at`.
local function nearing(hit)
  for _, limit in ipairs(hit) do
    local threshold = math.ceil(limit.capacity * hit.warn / 1000)
    local used = limit.capacity - limit.remaining
    if threshold < limit.capacity and used >= threshold and used - limit.cost < threshold then return limit end
  end
end

local function emit(hit, passed, flags)
  if hit.refused then
    if hit.ban ~= '-' and not hit.status and count_refusal(hit, flags) then return end
    if emits and hit.emits and should_emit(hit, 'e:' .. hit.rule, SECOND) then
      local limit = refusing(hit)
      local stop = limit.retry_after == NEVER and 0 or now + limit.retry_after
      append_event_of('refused', hit, limit, stop, 0)
      add_flag(flags, hit, REFUSAL_EMITTED, stop)
    end
  elseif emits and hit.emits and hit.warn > 0 and passed and not hit.status then
    local limit = nearing(hit)
    if limit and should_emit(hit, 'w:' .. hit.rule, math.min(math.max(limit.reset, SECOND), DAY)) then
      append_event_of('near', hit, limit, 0, 0)
      add_flag(flags, hit, NEAR_EMITTED, 0)
    end
  end
end
