-- decide: decides one plan: any number of hits (a rule for a subject), each with any number of limits; all or nothing.
-- The lines of percent signs stand for what decides plain plans, and for the modules that engine/decide.py lists.
--
-- KEYS   for each hit, in the plan's order: the status of the subject (a hash); the state of each limit; those of its options
--        last, if the log is in this slot: the event stream, the index of bans, the stream of bans alone
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] the mode: "check"; "peek" (changes nothing); "refund" (restores each cost, then peeks);
--            "settle <actual>:<due>:<token> ..." (for each hit a word: replaces what its hold consumed by what was really used,
--            whatever the limit; "-": the hit has no hold; then peeks); "renew <ttl>:<due>:<token> ..." (for each hit a word: its
--            hold lasts for <ttl> microseconds from now on; then peeks). For a plan in parts (several slots of a Cluster, or a body
--            to be read in between): "tentative" (a check that can be compensated); "record_refusal" (a check whose plan is
--            refused already); and for hits that passed a tentative check "record_day" (counts them for the day), "compensate
--            <n|-><receipt>,<receipt> ..." (see compensate)
--        [3] how many events the stream keeps; 0: no events; -1: the log is in another slot, and the caller writes events
--        then for each hit: the rule's name in the fields of hashes; the cost, a whole number from 0 up; the share of the limit,
--            in thousandths, that emits "near" (0: never); how many limits
--          for each limit: the algorithm, the capacity, a, b; for a calendar also c: whole numbers, see the algorithm
--          then its options in any order, each a word with its arguments, and '' behind the last:
--            "override" <published>: the rate override that its limits belong to, as it was published
--            "counted" <n>: a refused hit consumes of its n-th limit too; "quiet": no events
--            "value" <digest>: what a limit of values counts
--            "group" <n>: it belongs to the n-th rule that decides for itself alone (a shadow, or one that does not block);
--              without it a refusal refuses the plan
--            "ban" <capacity> <a> <b> <span>,<span>: the sliding window of refusals that leads to a ban, and how long the first,
--              the second and so on last; KEYS: these refusals
--            "day" <begins> <ends>: counts the day with these edges; KEYS: its counts
--            "hold" <token> <ttl>: what it consumes is noted as a hold for <ttl> microseconds; it has "holds", too
--            "holds" <n>: n keys; KEYS: the holds, and the states of n - 1 limits that holds alone need
-- reply  now, verdict, five for each limit {allowed, remaining, retry_after, reset, more}, and three for each flag
--        {hit, flag, value}: whole numbers, times in microseconds, hits counted from 0; in one text, 8 bytes a number, little
--        end first: redis-py without hiredis reads a list slowly. record_day replies the list {now, 1}.
--        verdict 1: allowed; 0: refused; -1: RETRY_WITH: the plan must be sent in another form
--        retry_after: if refused, until the same hit is admitted (-1: never); if admitted, how long to hold it back
--        more: until more is left than now (-1: never; for example, nothing is used)
--        flag 1: exempt; 2: blocked; 3: banned (value: the end, 0 for never); 4: the ban has begun now; 5: "refused" was
--            emitted; 6: "near" was emitted; 7: if the caller writes events, the number of the ban in its row; 8: of a tentative
--            hit, for each limit that counts values: the value's earlier expiry (0: it was not known); for each bucket two: how
--            much had been restored before it, and how much of that by refunds; 9: settled late (value: when the hold was due);
--            10: it is held now, or its hold was renewed (value: when that is due)
--        RETRY_WITH: a list, behind the verdict three for each reason {hit, flag, value}: 11: another rate override is in force
--            (value: as it was published; '' for none); 12: holds are due: their key is missing (value: also those of these
--            limits, joined by commas), or more are due than one call restores. No reason: the edges of a day or of a calendar
--            limit do not fit the time
-- %% plain plans %%

local ARGV, KEYS = ARGV, KEYS
if ARGV[2] == 'check' or ARGV[2] == 'tentative' then
  local reply = decide_plain()
  if reply then return reply end
end

local mode, mode_arguments = ARGV[2], nil
if mode ~= 'check' then mode, mode_arguments = string.match(mode, '^([%l_]+) ?(.*)$') end
local is_decided = mode == 'compensate' or mode == 'record_day' -- the hits were decided before
local emits = ARGV[3] ~= '0'

-- refused[0]: the plan is refused; refused[n]: the n-th rule that decides for itself is.
local refused, flags = mode == 'record_refusal' and { [0] = true } or nil, nil

-- Redis runs this text anew at each call, and it takes time to make functions and tables. So a module is made when it is first
-- needed, and so is a table that is seldom used. The frame itself makes no other function than these two.
local made, need = {}, nil

local function make(name)
  -- %% modules %%
end

function need(name)
  local module = made[name]
  if not module then
    module = make(name)
    made[name] = module
  end
  return module
end

local hits, keys_read, read = { nil }, 0, 3

while read < #ARGV do
  local hit = {
    rule = ARGV[read + 1], override = '', cost = ARGV[read + 2] + 0, warn = ARGV[read + 3] + 0, group = 0,
    status_key = KEYS[keys_read + 1], index = #hits,
  }
  local number_of_limits, is_outside = ARGV[read + 4] + 0, false
  keys_read, read = keys_read + 1, read + 4
  for i = 1, number_of_limits do
    local name = ARGV[read + 1]
    local algorithm = made[name] or need(name)
    local limit = {
      key = KEYS[keys_read + i], name = name, algorithm = algorithm, cost = hit.cost, capacity = ARGV[read + 2] + 0,
      a = ARGV[read + 3] + 0, b = ARGV[read + 4] + 0, remaining = 0, retry_after = 0,
    }
    read = read + 4
    if algorithm.outside then
      read = read + 1
      limit.c = ARGV[read] + 0
      is_outside = is_outside or algorithm.outside(limit)
    end
    hit[i] = limit
  end
  keys_read, read = keys_read + number_of_limits, read + 1
  while ARGV[read] ~= '' do
    local option = ARGV[read]
    if option == 'day' then
      hit.day_key = KEYS[keys_read + 1]
      is_outside = is_outside or now < ARGV[read + 1] + 0 or now >= ARGV[read + 2] + 0
      keys_read, read = keys_read + 1, read + 3
    elseif option == 'ban' then
      hit.refusals = {
        key = KEYS[keys_read + 1], cost = 1, capacity = ARGV[read + 1] + 0, a = ARGV[read + 2] + 0, b = ARGV[read + 3] + 0,
      }
      hit.ban_spans = ARGV[read + 4]
      keys_read, read = keys_read + 1, read + 5
    elseif option == 'holds' then
      hit.holds_key, hit.extra = KEYS[keys_read + 1], {}
      for i = 2, ARGV[read + 1] do hit.extra[i - 1] = need('holds').extra_limit(KEYS[keys_read + i]) end
      keys_read, read = keys_read + ARGV[read + 1], read + 2
    elseif option == 'hold' then
      hit.token, hit.ttl, read = ARGV[read + 1], ARGV[read + 2] + 0, read + 3
    elseif option == 'override' then
      hit.override, read = ARGV[read + 1], read + 2
    elseif option == 'group' then
      hit.group, read = ARGV[read + 1] + 0, read + 2
    elseif option == 'value' then
      for _, limit in ipairs(hit) do limit.value = ARGV[read + 1] end
      read = read + 2
    elseif option == 'counted' then
      hit[ARGV[read + 1] + 0].counted, read = true, read + 2
    else
      hit.quiet, read = true, read + 1
    end
  end
  if is_outside and not is_decided then return { now, -1 } end
  hits[#hits + 1] = hit
end

local retry
if mode ~= 'settle' and mode ~= 'renew' and not is_decided then
  local status_key, has_status
  for h = 1, #hits do
    local hit = hits[h]
    if hit.status_key ~= status_key then
      status_key = hit.status_key
      has_status = redis.call('HLEN', status_key) > 0 -- EXISTS would be one more permission
    end
    if has_status or hit.override ~= '' or hit.holds_key then
      retry = retry or { now, -1 }
      need('subject_status').load(hit, retry)
    end
  end
end
if retry then
  if retry[3] then return retry end
  for _, hit in ipairs(hits) do
    if hit.holds_key then
      local holds = need('holds')
      if mode == 'peek' or not need('try_write')(holds.restore_due, hit) then holds.credit_due(hit) end
      if hit.more_due then retry[#retry + 1], retry[#retry + 2], retry[#retry + 3] = hit.index, HOLDS_DUE, '' end
    end
  end
  if retry[3] then return retry end
end

if mode == 'refund' then
  for _, hit in ipairs(hits) do
    for _, limit in ipairs(hit) do
      if hit.status ~= EXEMPT then need('restore')[limit.name].refund(limit) end
    end
  end
elseif mode == 'settle' or mode == 'renew' then
  need('holds').change_all(hits)
elseif mode == 'compensate' then
  need('compensate').compensate_all(hits)
elseif mode == 'record_day' then
  for _, hit in ipairs(hits) do
    if hit.day_key then count_day(hit.day_key, hit.rule .. ':a') end
  end
  return { now, 1 }
end

for h = 1, #hits do
  local hit = hits[h]
  for i = 1, #hit do
    local limit, allowed = hit[i], nil
    allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.peek(limit)
    if hit.status == EXEMPT then
      allowed, limit.retry_after = true, 0
    elseif hit.status then
      limit.refused = not allowed
      need('subject_status').shut_out(limit, hit.stop)
      allowed = false
    end
    if not allowed then
      refused = refused or {}
      hit.refused, limit.refused, refused[hit.group] = true, true, true
    end
  end
  if hit.status then need('flag')(hit, hit.status, hit.stop) end
end

if mode == 'check' or mode == 'tentative' or mode == 'record_refusal' then
  for h = 1, #hits do
    local hit = hits[h]
    if hit.cost == 0 then
      -- It asks whether there is room, and changes nothing.
    elseif hit.status or (refused and (refused[0] or refused[hit.group])) then
      -- A refusal stands even if it cannot be counted and emitted.
      need('try_write')(need('refusal'), hit)
    else
      local warn, near = emits and hit.warn or 0, nil
      for i = 1, #hit do
        local limit = hit[i]
        limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.consume(limit)
        if warn > 0 and not near then
          -- It is near if its use has just reached the threshold, and that is not the limit itself.
          local capacity, threshold = limit.capacity, limit.capacity * warn
          local used = capacity - limit.remaining
          if used * 1000 >= threshold and (used - hit.cost) * 1000 < threshold and threshold <= (capacity - 1) * 1000 then
            near = limit
          end
        end
      end
      if hit.token then need('holds').hold(hit) end
      if hit.day_key and mode ~= 'tentative' then count_day(hit.day_key, hit.rule .. ':a') end
      if near then need('events').emit_near(hit, near) end
      if mode == 'tentative' then need('compensate').flag_known(hit) end
    end
  end
end

local first = hits[1][1]
local parts = {
  struct.pack('<i8i8i8i8i8i8i8', now, refused and refused[0] and 0 or 1,
    first.refused and 0 or 1, first.remaining, first.retry_after, first.reset, first.more),
}
for h = 1, #hits do
  local hit = hits[h]
  for i = h == 1 and 2 or 1, #hit do
    local limit = hit[i]
    parts[#parts + 1] = struct.pack('<i8i8i8i8i8',
      limit.refused and 0 or 1, limit.remaining, limit.retry_after, limit.reset, limit.more)
  end
end
for i = 1, flags and #flags or 0 do parts[#parts + 1] = struct.pack('<i8', flags[i]) end
return table.concat(parts)
