-- adjust: replaces what hits took by what they really used, where they were counted. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide; the mode is "adjust", then for each hit " <moment>:<actual>:<places>", or " -": it took nothing.
--        moment: when the hit was decided; its cost: what it took; actual: what it really used; places: for each limit
--        1, or 0 if the limit did not count the hit, and so gives nothing back
-- reply  adjust: nothing; from then on the cost of each hit is 0. judge_near: nothing; it adds flags
local restorers = need('restore')

-- Counts in the day what the hit really used; a hit that used nothing does not count. If a roll-up has already moved
-- the counts, the next one adds the difference.
local function recount_day(hit)
  local more = hit.actual - hit.cost
  if not hit.day_key or more == 0 then return end
  if hit.actual == 0 then
    redis.call('HINCRBY', hit.day_key, hit.rule .. ':a', '-1')
    more = more + 1
  end
  if more ~= 0 then
    local change = more < 0 and '-' .. integer(-more) or integer(more)
    redis.call('HINCRBY', hit.day_key, hit.rule .. ':u', change)
  end
  if redis.call('PTTL', hit.day_key) < 0 then expire(hit.day_key, DAY_TTL) end
end

local function adjust_hit(hit, moment, actual, places)
  local more = actual - hit.cost
  for i, limit in ipairs(hit) do
    local has_counted = string.sub(places, i, i) == '1'
    if more > 0 and limit.capacity > 0 then
      limit.cost = more
      limit.algorithm.peek(limit)
      limit.algorithm.consume(limit, true)
    elseif more < 0 and has_counted then
      restorers[limit.name].give_back(limit, -more, moment)
    end
  end
end

local function adjust(hits)
  local number = 0
  for word in string.gmatch(mode_arguments, '%S+') do
    number = number + 1
    local hit = hits[number]
    local moment, actual, places = string.match(word, '^(%d+):(%d+):(%d+)$')
    if moment then
      hit.actual = tonumber(actual)
      adjust_hit(hit, tonumber(moment), hit.actual, places)
      recount_day(hit)
    end
    hit.cost = 0
    for _, limit in ipairs(hit) do limit.cost = 0 end
  end
end

-- What is really used decides whether a limit is near.
local function judge_near(hits)
  for _, hit in ipairs(hits) do
    if hit.actual and hit.warn > 0 and not hit.status then need('near')(hit, hit.actual, true) end
  end
end

return { adjust = adjust, judge_near = judge_near }
