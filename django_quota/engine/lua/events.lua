-- events: what a hit leaves besides its counts: bans after too many refusals, and the flags that report events. A
-- module of decide.
--
-- KEYS   hit.refusals.key: the refusals that lead to a ban, as sliding_window keeps them
--        hit.status_key: see subject_status
-- ARGV   as decide
-- reply  emit_refused: nothing; it adds flags. note: nothing

-- Remembers for `span` microseconds that an event was emitted.
local function note(hit, field, value, span)
  redis.call('HSET', hit.status_key, field, value)
  keep(hit.status_key, span)
end

-- Counts a refusal. If it is one too many, a ban begins, longer than an earlier one that is still remembered.
local function count_refusal(hit)
  local sliding, refusals = need('sliding_window'), hit.refusals
  local _, left = sliding.peek(refusals)
  if left > 1 then
    sliding.consume(refusals)
    return false
  end
  redis.call('DEL', refusals.key)
  local lengths = {}
  for length in string.gmatch(hit.ban_spans, '%d+') do lengths[#lengths + 1] = tonumber(length) end
  local level = (hit.remembered or 0) > now and hit.level + 1 or 1
  local stop = now + lengths[math.min(level, #lengths)]
  local remembered = stop + lengths[#lengths]
  redis.call('HSET', hit.status_key, 'b:' .. hit.rule,
    integer(stop) .. ' ' .. integer(level) .. ' ' .. integer(remembered))
  keep(hit.status_key, remembered - now)
  for _, limit in ipairs(hit) do need('subject_status').shut_out(limit, stop) end
  need('flag')(hit, BANNED, stop)
  if emits then
    need('flag')(hit, BAN_BEGAN, stop)
    need('flag')(hit, BAN_LEVEL, level)
  end
  return true
end

-- When the limit that refuses longest admits the hit; 0: never.
local function refuses_until(hit)
  local longest = 0
  for _, limit in ipairs(hit) do
    if limit.refused and limit.retry_after == NEVER then return 0 end
    if limit.refused then longest = math.max(longest, limit.retry_after) end
  end
  return now + longest
end

local function emit_refused(hit, emits_event)
  if hit.refusals and not hit.status and count_refusal(hit) then return end
  if not emits_event then return end
  note(hit, 'e:' .. hit.rule, integer(now + SECOND), SECOND)
  need('flag')(hit, REFUSAL_EMITTED, refuses_until(hit))
end

return { emit_refused = emit_refused, note = note }
