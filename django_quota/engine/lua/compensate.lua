-- compensate: takes back what hits have consumed, since a later part of their plan was refused. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide; the mode is "compensate", then for each hit " -" if it consumed nothing, else " <near><receipt>,<receipt>".
--        near n: the hit emitted "near", else -. One receipt for each limit, as holds have them; for a limit that counts values
--        "<expiry>:<before>": the expiry that the hit gave the value, and the one before it (0: none). Behind them
--        ";<due>:<token>", if the hit is held: the hold is dropped.
-- reply  compensate_all, flag_known: nothing
--
-- What others did meanwhile stays. If it cannot be told apart, less is restored, never more.

local restorers = need('restore')

-- The other algorithms restore the hit, as they restore a hold.
local compensators = {
  -- The hit's own entry goes, and the totals of later entries go down.
  sliding_window = function(limit, stop)
    local entries = restorers.sliding_window.entries_from(limit, integer(stop))
    if not entries[1] or tonumber(entries[1].score) ~= stop then return end
    local less = math.min(limit.cost, entries[1].cost)
    entries[1].cost = entries[1].cost - less
    for _, entry in ipairs(entries) do entry.total = entry.total - less end
    restorers.sliding_window.rewrite(limit, entries)
  end,

  distinct = function(limit, stop, words)
    if tonumber(redis.call('ZSCORE', limit.key, limit.value) or 0) ~= stop then return end
    local before = string.sub(words, 2)
    if tonumber(before) > now then
      redis.call('ZADD', limit.key, before, limit.value)
    else
      redis.call('ZREM', limit.key, limit.value)
    end
  end,
}

local function compensate(hit, limit, receipt)
  local stop, words = string.match(receipt, '^(%d+)(.*)$')
  stop = tonumber(stop)
  -- A limit that counts refused hits keeps the hit, since its plan was refused.
  if (limit.counted and hit.group == 0) or stop <= now then return end
  if compensators[limit.name] then return compensators[limit.name](limit, stop, words) end
  local restorer = restorers[limit.name]
  local amount = restorer.still_used(limit, limit.cost, stop, words)
  if amount > 0 then restorer.restore(limit, amount) end
end

local function compensate_all(hits)
  local number = 0
  for word in string.gmatch(mode_arguments, '%S+') do
    number = number + 1
    local hit, at = hits[number], 0
    local near, receipts, due, token = string.match(word, '^([n-])([^;]+);?(%d*):?(%S*)$')
    -- What a hold that is gone held has come back already.
    if near and (due == '' or need('holds').drop(hit, token, due)) then
      for receipt in string.gmatch(receipts, '[^,]+') do
        at = at + 1
        compensate(hit, hit[at], receipt)
      end
      if near == 'n' then redis.call('HDEL', hit.status_key, 'w:' .. hit.rule) end
    end
  end
end

local function flag_known(hit)
  for _, limit in ipairs(hit) do
    if limit.before then need('flag')(hit, KNOWN_BEFORE, limit.before) end
    if limit.refunded_before then need('flag')(hit, KNOWN_BEFORE, limit.refunded_before) end
  end
end

return { compensate_all = compensate_all, flag_known = flag_known }
