-- adjust: replaces what hits took by what they really used, where they were counted. A module of decide.
--
-- KEYS   as decide
--        then for each hit the days of its portions, if they are not that of the hit; its mark, if it has one: a string
--        that says that the hit was settled, with the answer: five numbers for each limit, as in the reply
-- ARGV   as decide; the mode is "adjust", then for each hit " <stop>" and its portions, each
--        ",<moment>:<cost>:<actual>:<places>:<lease>:<drawn>:<day>"; or " -": it took nothing.
--        stop: until when the mark says so; 0: it has none. moment: when the portion was decided; cost: what it took;
--        actual: what was really used; places: for each limit 1, or 0 if the limit did not count it, and so gives
--        nothing back; lease: its id, see leased_units; drawn: what it took of grants; day 1: it has a day of its own
-- reply  adjust: nothing; from then on the cost of each limit is 0. answer: nothing; it shows the first answer to a hit
--        that was settled before, and remembers that to any other. judge_near: nothing; it adds flags
local restorers = need('restore')

local function signed(number) return number < 0 and '-' .. integer(-number) or integer(number) end

-- Counts in the day what the hit really used; a hit that used nothing does not count. If a roll-up has already moved
-- the counts, the next one adds the difference.
local function recount_day(day_key, rule, cost, actual)
  local more = actual - cost
  if not day_key or more == 0 then return end
  if actual == 0 then
    redis.call('HINCRBY', day_key, rule .. ':a', '-1')
    more = more + 1
  end
  if more ~= 0 then redis.call('HINCRBY', day_key, rule .. ':u', signed(more)) end
  if redis.call('PTTL', day_key) < 0 then expire(day_key, DAY_TTL) end
end

local function adjust_portion(hit, moment, cost, actual, places, lease, drawn)
  for i, limit in ipairs(hit) do
    local has_counted, took = string.sub(places, i, i) == '1', cost
    -- The units of a lease that has ended have gone back already.
    local member = lease .. ':' .. integer(cost) .. ':' .. drawn
    if limit.leased_key and redis.call('ZREM', limit.leased_key, member) == 0 then took = 0 end
    local more = actual - took
    if more > 0 and limit.capacity > 0 then
      limit.cost = more
      limit.algorithm.peek(limit)
      limit.algorithm.consume(limit, true)
    elseif more < 0 and has_counted then
      limit.cost = cost
      restorers[limit.name].give_back(limit, -more, moment, drawn)
    end
  end
end

-- Says whether the hit is to be settled now: not if it was settled before, or if it is too late.
local function is_first(hit, mark_key, stop)
  hit.answer = redis.call('GET', mark_key)
  if hit.answer or stop <= now then return false end
  -- The mark comes first: Redis keeps what a script did before an error, and nothing may be settled twice. A full server
  -- accepts what follows a deletion.
  redis.call('DEL', mark_key)
  redis.call('SET', mark_key, '', 'PX', lifetime(stop - now))
  hit.mark_key = mark_key
  return true
end

-- `keys_read`: how many keys the hits have.
local function adjust(hits, keys_read)
  local number = 0
  for word in string.gmatch(mode_arguments, '%S+') do
    number = number + 1
    local hit = hits[number]
    local stop, portions = string.match(word, '^(%d+),(.+)$')
    local settled = {}
    for moment, cost, actual, places, lease, drawn, day in
      string.gmatch(portions or '', '(%d+):(%d+):(%d+):(%d*):([^:,]*):([^:,]*):(%d)')
    do
      local day_key = hit.day_key
      if day == '1' then
        keys_read = keys_read + 1
        day_key = KEYS[keys_read]
      end
      settled[#settled + 1] = { tonumber(moment), tonumber(cost), tonumber(actual), places, lease, drawn, day_key }
    end
    local is_now = stop ~= nil
    if is_now and stop ~= '0' then
      keys_read = keys_read + 1
      is_now = is_first(hit, KEYS[keys_read], tonumber(stop))
    end
    if is_now then
      hit.actual = 0
      for _, portion in ipairs(settled) do
        local moment, cost, actual, places, lease, drawn, day_key = unpack(portion, 1, 7)
        hit.actual = hit.actual + actual
        adjust_portion(hit, moment, cost, actual, places, lease, drawn)
        recount_day(day_key, hit.rule, cost, actual)
      end
    end
    for _, limit in ipairs(hit) do limit.cost = 0 end
  end
end

-- The answer of a rule whose number of limits has changed since is of no use: then they show what they have left now.
local function show_first_answer(hit)
  local numbers = {}
  for number in string.gmatch(hit.answer, '%S+') do numbers[#numbers + 1] = tonumber(number) end
  if #numbers ~= 5 * #hit then return end
  for i, limit in ipairs(hit) do
    local allowed
    allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = unpack(numbers, 5 * i - 4, 5 * i)
    limit.refused = allowed == 0
  end
end

local function answer(hits)
  for _, hit in ipairs(hits) do
    if hit.answer then
      show_first_answer(hit)
    elseif hit.mark_key then
      local words = {}
      for _, limit in ipairs(hit) do
        local verdict = { limit.refused and 0 or 1, limit.remaining, limit.retry_after, limit.reset, limit.more }
        for _, number in ipairs(verdict) do words[#words + 1] = signed(number) end
      end
      redis.call('SET', hit.mark_key, table.concat(words, ' '), 'KEEPTTL')
    end
  end
end

-- What is really used decides whether a limit is near.
local function judge_near(hits)
  for _, hit in ipairs(hits) do
    if hit.actual and hit.warn > 0 and not hit.status then need('near')(hit, hit.actual, 'lowers') end
  end
end

return { adjust = adjust, answer = answer, judge_near = judge_near }
