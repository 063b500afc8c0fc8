-- undo: what hits have just spent is taken back, since a later part of their plan was refused. A part of decide.
--
-- KEYS   as decide
-- ARGV   as decide; the mode is "undo", and for each hit " <near><mark>,<mark>": near n: it was told to be near its limit, else -;
--        a mark for each limit: the moment (microseconds) from which on nothing of what it spent there is used any more; of
--        a limit that counts values "<expiry>:<before>": what was noted of the value, and what was before (0: nothing)
-- reply  undo_all, note_known: nothing
--
-- What others have done meanwhile stays. Where it cannot be told apart, less is given back, never more.

local undoing = {
  sliding_window = function(limit, mark)
    sliding_read(limit, now)
    if limit.used > 0 and limit.expiry == mark and limit.last_cost >= limit.cost then
      -- It is still the last one: as if it had never been.
      if limit.last_cost > limit.cost then
        redis.call('ZADD', limit.key, integer(mark),
          integer((limit.total - limit.cost) % SLIDING_WRAP) .. ':' .. integer(limit.last_cost - limit.cost))
      end
      redis.call('ZREM', limit.key, limit.last)
    else
      algorithms.sliding_window.refund(limit, now)
    end
  end,

  distinct = function(limit, mark, before)
    if tonumber(redis.call('ZSCORE', limit.key, limit.value) or 0) ~= mark then return end
    if before > now then
      redis.call('ZADD', limit.key, integer(before), limit.value)
    else
      redis.call('ZREM', limit.key, limit.value)
    end
  end,

  token_bucket = function(limit, mark)
    bucket_read(limit, now)
    limit.backlog = limit.backlog - math.min(limit.cost * limit.a, mark - now)
    if limit.backlog > 0 then bucket_write(limit, now) else redis.call('DEL', limit.key) end
  end,
}
undoing.leaky_bucket = undoing.token_bucket

-- A window that was emptied and opened again ends at another moment.
undoing.fixed_window = function(limit, mark)
  tally_read(limit, now)
  if limit.stop == mark then tally_refund(limit, now) end
end
undoing.calendar = undoing.fixed_window

local function undo(hit, limit, word)
  local mark, before = string.match(word, '^(%d+):?(%d*)$')
  mark = tonumber(mark)
  -- A refused hit is spent all the same where the limit counts those.
  if (limit.counted and hit.group == 0) or mark <= now then return end
  undoing[limit.name](limit, mark, tonumber(before))
end

local function undo_all(hits)
  local number = 0
  for near, words in string.gmatch(mode_arguments, '([n-])(%S+)') do
    number = number + 1
    local hit, at = hits[number], 0
    for word in string.gmatch(words, '[^,]+') do
      at = at + 1
      undo(hit, hit[at], word)
    end
    uncount(hit, near == 'n')
  end
end

local function note_known(notes, hit)
  for _, limit in ipairs(hit) do
    if limit.before then note(notes, hit, KNOWN_BEFORE, limit.before) end
  end
end
