-- telling: what happens around a decision: the day's counts, bans after too many refusals, events. A part of decide.
--
-- KEYS   hit.day_key: a hash of the subject and day; fields <rule>:a (allowed), <rule>:r (refused), '#' (when it was opened:
--          tells it from one that was lost)
--        hit.tally_key: the refusals on the way to a ban, as sliding_window keeps them
--        hit.standing_key: see standing
--        the log, where it is in reach: see log
-- ARGV   as decide
-- reply  count, tell: nothing; tell puts what it told into the notes; uncount: takes back what a hit that passed has left

local DAY_KEPT = 8 * DAY -- so long the counts of a day wait for the roll-up

local function note(notes, hit, what, stop)
  notes[#notes + 1], notes[#notes + 2], notes[#notes + 3] = hit.index, what, stop
end

local function count(hit, passed)
  if not hit.day_key or not (passed or hit.refused) then return end
  local key = hit.day_key
  if redis.call('HINCRBY', key, hit.rule .. (hit.refused and ':r' or ':a'), 1) == 1 then
    if redis.call('HSETNX', key, '#', integer(now)) == 1 then expire(key, DAY_KEPT) end
  end
end

local function uncount(hit, was_near)
  local field = hit.rule .. ':a'
  if hit.day_key and redis.call('HEXISTS', hit.day_key, field) == 1 and redis.call('HINCRBY', hit.day_key, field, -1) < 1 then
    redis.call('HDEL', hit.day_key, field)
  end
  if was_near then redis.call('HDEL', hit.standing_key, 'w:' .. hit.rule) end
end

local function subject_of(hit) return string.match(hit.standing_key, '{(.-)}') end

-- Where the log is out of reach, the notes say it, and the caller writes it.
local function publish_of(kind, hit, limit, stop, level)
  if events_key then publish(kind, hit.rule, subject_of(hit), stop, level, limit.capacity, limit.remaining) end
end

-- Says whether something may be told again, and if so, not before `span` from now.
local function may_tell(hit, field, span)
  local quiet = redis.call('HGET', hit.standing_key, field)
  if quiet and tonumber(quiet) > now then return false end
  redis.call('HSET', hit.standing_key, field, integer(now + span))
  keep(hit.standing_key, span)
  return true
end

-- Counts a refusal; where it is one too many, the ban begins, longer than the one before that is still remembered.
local function ban_after(hit, notes)
  local capacity, a, b, spans = string.match(hit.ban, '^(%d+);(%d+);(%d+);(%S+)$')
  local tally = { key = hit.tally_key, cost = 1, credit = 0, capacity = tonumber(capacity), a = tonumber(a), b = tonumber(b) }
  local sliding = algorithms.sliding_window
  local _, left = sliding.inspect(tally, now)
  if left > 1 then
    sliding.spend(tally, now)
    return false
  end
  redis.call('DEL', hit.tally_key)
  local lengths = {}
  for length in string.gmatch(spans, '%d+') do lengths[#lengths + 1] = tonumber(length) end
  local level = (hit.remembered or 0) > now and hit.level + 1 or 1
  local stop = now + lengths[math.min(level, #lengths)]
  local remembered = stop + lengths[#lengths]
  redis.call('HSET', hit.standing_key, 'b:' .. hit.rule,
    integer(stop) .. ' ' .. integer(level) .. ' ' .. integer(remembered))
  keep(hit.standing_key, remembered - now)
  for _, limit in ipairs(hit) do shut_out(limit, stop) end
  note(notes, hit, BANNED, stop)
  if tells then
    note(notes, hit, BAN_BEGAN, stop)
    if bans_key then
      index_ban(hit.rule, subject_of(hit), stop)
      publish_of('banned', hit, hit[1], stop, level)
    else
      note(notes, hit, BAN_LEVEL, level)
    end
  end
  return true
end

-- The limit that refuses longest.
local function refusing(hit)
  local longest
  for _, limit in ipairs(hit) do
    if not limit.ok then
      local wait = limit.wait == NEVER and math.huge or limit.wait
      if not longest or wait > longest.sort then
        limit.sort = wait
        longest = limit
      end
    end
  end
  return longest
end

-- The first limit whose use has passed the share from which on it is near.
local function nearing(hit)
  for _, limit in ipairs(hit) do
    local threshold = math.ceil(limit.capacity * hit.warn / 1000)
    local used = limit.capacity - limit.remaining
    if threshold < limit.capacity and used >= threshold and used - limit.cost < threshold then return limit end
  end
end

local function tell(hit, passed, notes)
  if hit.refused then
    if hit.ban ~= '-' and not hit.standing and ban_after(hit, notes) then return end
    if tells and hit.told and may_tell(hit, 'e:' .. hit.rule, SECOND) then
      local limit = refusing(hit)
      local stop = limit.wait == NEVER and 0 or now + limit.wait
      publish_of('refused', hit, limit, stop, 0)
      note(notes, hit, REFUSAL_TOLD, stop)
    end
  elseif tells and hit.told and hit.warn > 0 and passed and not hit.standing then
    local limit = nearing(hit)
    if limit and may_tell(hit, 'w:' .. hit.rule, math.min(math.max(limit.reset, SECOND), DAY)) then
      publish_of('near', hit, limit, 0, 0)
      note(notes, hit, NEAR_TOLD, 0)
    end
  end
end
