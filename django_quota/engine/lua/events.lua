-- events: what a hit leaves besides its counts: bans after too many refusals, and events. A module of decide, after
-- event_log.
--
-- KEYS   hit.refusals.key: the refusals that lead to a ban, as sliding_window keeps them
--        hit.status_key: see subject_status
--        the log, if it is in this slot: see event_log
-- ARGV   as decide
-- reply  emit_refused: nothing; it adds flags. append, note: nothing

local has_log = ARGV[3] ~= '-1'

local function subject_of(hit) return string.match(hit.status_key, '{(.-)}') end

-- If the log is in another slot, the flags report the event, and the caller writes it.
local function append(kind, hit, limit, stop, level, share)
  if not has_log then return end
  local remaining = math.max(0, limit.remaining)
  append_event(kind, hit.rule, subject_of(hit), stop, level, limit.capacity, remaining, share)
end

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
    if has_log then
      index_ban(hit.rule, subject_of(hit), stop)
      append('banned', hit, hit[1], stop, level, 0)
    else
      need('flag')(hit, BAN_LEVEL, level)
    end
  end
  return true
end

-- The limit that refuses longest.
local function refusing(hit)
  local longest
  for _, limit in ipairs(hit) do
    if limit.refused then
      local wait = limit.retry_after == NEVER and math.huge or limit.retry_after
      if not longest or wait > longest.sort then
        limit.sort = wait
        longest = limit
      end
    end
  end
  return longest
end

local function emit_refused(hit, emits_event)
  if hit.refusals and not hit.status and count_refusal(hit) then return end
  if not emits_event then return end
  note(hit, 'e:' .. hit.rule, integer(now + SECOND), SECOND)
  local limit = refusing(hit)
  local stop = limit.retry_after == NEVER and 0 or now + limit.retry_after
  append('refused', hit, limit, stop, 0, 0)
  need('flag')(hit, REFUSAL_EMITTED, stop)
end

return { append = append, emit_refused = emit_refused, note = note }
