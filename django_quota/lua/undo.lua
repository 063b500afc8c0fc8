-- undo: what hits have just spent is taken back, since a later part of their plan was refused. A part of decide.
--
-- KEYS   as decide
-- ARGV   as decide; the mode is "undo", and for each hit " <near><mark>,<mark>": near n: it was told to be near its limit, else -;
--        a mark for each limit: the moment (microseconds) from which on nothing of what it spent there is used any more; of
--        a limit that counts values "<expiry>:<before>": what was noted of the value, and what was before (0: nothing); of
--        a bucket "<TAT>:<before>:<refunded>:<alone>": how much had been given back and refunded of it before, and when the
--        hit would have flowed back if it had been alone
-- reply  undo_all, note_known: nothing
--
-- What others have done meanwhile stays. Where it cannot be told apart, less is given back, never more.

local undoing = {
  -- Its own entry goes, and the totals of those behind it go down: as if it had never been.
  sliding_window = function(limit, mark)
    local from = redis.call('ZRANGEBYSCORE', limit.key, integer(mark), '+inf', 'WITHSCORES')
    if not from[1] or tonumber(from[2]) ~= mark then return end
    local first_cost = tonumber(string.match(from[1], ':(%d+)$'))
    local less = math.min(limit.cost, first_cost)
    local added, kept, removed = {}, {}, {}
    for at = 1, #from, 2 do
      local total, cost = string.match(from[at], '^(%d+):(%d+)$')
      if at == 1 then cost = first_cost - less end
      if at > 1 or cost > 0 then
        local member = integer((tonumber(total) - less) % SLIDING_WRAP) .. ':' .. integer(tonumber(cost))
        added[#added + 1], added[#added + 2] = from[at + 1], member
        kept[member] = true
      end
    end
    for at = 1, #from, 2 do
      if not kept[from[at]] then removed[#removed + 1] = from[at] end
    end
    -- Before the old ones go: a set that is emptied is gone, and its TTL with it.
    if added[1] then redis.call('ZADD', limit.key, unpack(added)) end
    redis.call('ZREM', limit.key, unpack(removed))
  end,

  distinct = function(limit, mark, before)
    if tonumber(redis.call('ZSCORE', limit.key, limit.value) or 0) ~= mark then return end
    if before > now then
      redis.call('ZADD', limit.key, integer(before), limit.value)
    else
      redis.call('ZREM', limit.key, limit.value)
    end
  end,

  token_bucket = function(limit, mark, before, refunded, alone)
    bucket_read(limit, now)
    bucket_give_back(limit, math.min(limit.cost * limit.a, bucket_left(limit, now, mark, before, refunded, alone)), now)
  end,

  -- Who stands behind it was told when to leave: only the last place in the queue can be given to another one.
  leaky_bucket = function(limit, mark)
    bucket_read(limit, now)
    if now + limit.backlog == mark then bucket_give_back(limit, limit.cost * limit.a, now) end
  end,
}

-- A window that was emptied and opened again ends at another moment.
undoing.fixed_window = function(limit, mark)
  tally_read(limit, now)
  if limit.stop == mark then tally_refund(limit, now) end
end
undoing.calendar = undoing.fixed_window

local function undo(hit, limit, word)
  local mark, before, refunded, alone = string.match(word, '^(%d+):?(%d*):?(%d*):?(%d*)$')
  mark = tonumber(mark)
  -- A refused hit is spent all the same where the limit counts those.
  if (limit.counted and hit.group == 0) or mark <= now then return end
  undoing[limit.name](limit, mark, tonumber(before), tonumber(refunded), tonumber(alone))
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
    if near == 'n' then redis.call('HDEL', hit.standing_key, 'w:' .. hit.rule) end
  end
end

local function note_known(notes, hit)
  for _, limit in ipairs(hit) do
    if limit.before then note(notes, hit, KNOWN_BEFORE, limit.before) end
    if limit.refunded_before then note(notes, hit, KNOWN_BEFORE, limit.refunded_before) end
  end
end
