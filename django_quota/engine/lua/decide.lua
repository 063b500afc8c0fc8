-- decide: decides one plan: any number of hits (a rule for a subject), each with any number of limits; all or nothing.
-- The lines of percent signs mark where engine/decide.py inserts what decides plain plans, and the modules.
--
-- KEYS   for each hit, in the plan's order: the status of the subject (a hash); the state of each limit; the keys of
--        its options; last, what the mode "adjust" needs
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] the mode: "check"; "force" (see force); "peek" (changes nothing); "refund" (restores each cost, then
--            peeks); "adjust <stop>,<portion>,... ..." (for each hit a word, see adjust: replaces what it took by
--            what was really used, whatever the limit; then peeks at a cost of 0)
--        [3] 1: flags report events, which the caller writes (append_events); 0: no events
--        then for each hit: the rule's name in the fields of hashes; the cost, a whole number from 0 up; the lowest
--            share of the limit, in thousandths, that emits "near" (0: never; negative: only if the hit is refused); how
--            many limits
--          for each limit: the algorithm, the capacity, a, b; for a calendar also c, and for a subscription c and d:
--            whole numbers, see the algorithm
--          then its options in any order, each a word with its arguments, and '' after the last:
--            "counted" <n>: a refused hit consumes of its n-th limit too; "quiet": no events
--            "shares" <share>,<share>: all shares that emit such an event, if there are several; they rise
--            "value" <digest>: what a limit of values counts
--            "group" <n>: it belongs to the n-th rule that decides for itself alone (a shadow, or one that does not
--              block); without it a refusal refuses the plan
--            "ban" <capacity> <a> <b> <span>,<span>: the sliding window of refusals that leads to a ban, and how long
--              the first, the second and so on last; KEYS: these refusals
--            "ahead" <id> <spent> <new id> <wish> <divisor> <lease>: units may be taken ahead of hits: the caller
--              returns its share <id>, of which it has spent so much ('': it has none), and wishes to take so many
--              units (0: none) for the lease in microseconds, at most what is left divided by the divisor; KEYS: for
--              each limit the shares that are out
--            "grants": what a counter holds may expire; KEYS: the units that do
--            "leased": the units of a counter are taken for a lease; KEYS: these units
--            "day" <begins> <ends> <tier>: a check counts the day with these edges, and notes the tier; KEYS: its
--              counts
-- reply  now, verdict, five for each limit {allowed, remaining, retry_after, reset, more}, and three for each flag
--        {hit, flag, value}: whole numbers, times in microseconds, hits counted from 0; in one string, 8 bytes each,
--        little-endian: redis-py without hiredis reads a list slowly.
--        verdict 1: allowed; 0: refused; -1: RETRY_WITH, a list: the edges of a day or of a calendar limit do not fit
--          the time
--        retry_after: if refused, until the same hit is admitted (-1: never); if admitted, how long to hold it back
--        more: until more is left than now (-1: never; for example, nothing is used)
--        flag 1: banned (value: until when); 2: the ban has begun now; 3: "refused" was emitted; 4: "near" was emitted
--          (value: the share); 5: the number of the ban that has begun, in its series; 7: units were taken ahead; 8: for
--          so long (microseconds); 9: units were taken of the grant that expires at the value; 10: so many
-- %% plain plans %%
local plain_reply, plain_days
if ARGV[2] == 'check' then
  plain_reply, plain_days = decide_plain()
  if plain_reply and not plain_days then return plain_reply end
end
-- %% parts %%
if plain_reply then
  for n = 1, #plain_days, 4 do
    local day_key, rule, cost, tier = unpack(plain_days, n, n + 3)
    count_day(day_key, rule, ':a', cost, tier)
  end
  return plain_reply
end

local ARGV, KEYS = ARGV, KEYS

local mode = ARGV[2]
local mode_arguments
if mode ~= 'check' then mode, mode_arguments = string.match(mode, '^(%l+) ?(.*)$') end
local emits = ARGV[3] ~= '0'

-- refused[0]: the plan is refused; refused[n]: the n-th rule that decides for itself is.
local refused, flags = nil, nil

-- Says whether a limit has room for the cost, and what it has left.
local function look(limit)
  local allowed
  allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.peek(limit)
  limit.refused = not allowed
end

-- Redis runs this text anew at each call, and it takes time to make functions and tables. So a module is made when it
-- is first needed, and so is a table that is rarely used. The frame itself makes three functions.
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

local hits = { nil }
local keys_read, read = 0, 3
local counts = ARGV[2] == 'check' or ARGV[2] == 'force'

while read < #ARGV do
  local hit = {
    index = #hits,
    status_key = KEYS[keys_read + 1],
    rule = ARGV[read + 1],
    cost = ARGV[read + 2] + 0,
    warn = ARGV[read + 3] + 0,
    group = 0,
  }
  local number_of_limits = ARGV[read + 4] + 0
  local is_outside = false
  keys_read = keys_read + 1
  read = read + 4
  for i = 1, number_of_limits do
    local name = ARGV[read + 1]
    local algorithm = made[name] or need(name)
    local limit = {
      key = KEYS[keys_read + i],
      name = name,
      algorithm = algorithm,
      cost = hit.cost,
      capacity = ARGV[read + 2] + 0,
      a = ARGV[read + 3] + 0,
      b = ARGV[read + 4] + 0,
      remaining = 0,
      retry_after = 0,
    }
    read = read + 4
    if algorithm.outside then
      read = read + 1
      limit.c = ARGV[read] + 0
      if algorithm.has_last_edge then
        read = read + 1
        limit.d = ARGV[read] + 0
      end
      is_outside = is_outside or algorithm.outside(limit)
    end
    hit[i] = limit
  end
  keys_read = keys_read + number_of_limits
  read = read + 1
  while ARGV[read] ~= '' do
    local option = ARGV[read]
    if option == 'day' then
      local begins = ARGV[read + 1] + 0
      local ends = ARGV[read + 2] + 0
      hit.day_key = KEYS[keys_read + 1]
      hit.tier = ARGV[read + 3]
      is_outside = is_outside or (counts and (now < begins or now >= ends))
      keys_read = keys_read + 1
      read = read + 4
    elseif option == 'ban' then
      hit.refusals = {
        key = KEYS[keys_read + 1],
        cost = 1,
        capacity = ARGV[read + 1] + 0,
        a = ARGV[read + 2] + 0,
        b = ARGV[read + 3] + 0,
      }
      hit.ban_spans = ARGV[read + 4]
      keys_read = keys_read + 1
      read = read + 5
    elseif option == 'group' then
      hit.group = ARGV[read + 1] + 0
      read = read + 2
    elseif option == 'value' then
      for _, limit in ipairs(hit) do limit.value = ARGV[read + 1] end
      read = read + 2
    elseif option == 'counted' then
      local number = ARGV[read + 1] + 0
      hit[number].counted = true
      read = read + 2
    elseif option == 'shares' then
      hit.shares = ARGV[read + 1]
      read = read + 2
    elseif option == 'ahead' then
      for i, limit in ipairs(hit) do limit.ahead_key = KEYS[keys_read + i] end
      hit.ahead = read
      keys_read = keys_read + number_of_limits
      read = read + 7
    elseif option == 'grants' then
      keys_read = keys_read + 1
      hit[1].grants_key = KEYS[keys_read]
      hit[1].hit = hit
      read = read + 1
    elseif option == 'leased' then
      keys_read = keys_read + 1
      hit[1].leased_key = KEYS[keys_read]
      hit.leased = true
      read = read + 1
    else
      hit.quiet = true
      read = read + 1
    end
  end
  if is_outside then return { now, -1 } end
  hits[#hits + 1] = hit
end

for h = 1, #hits do
  if hits[h].refusals then need('subject_status').load(hits[h]) end
  if hits[h].leased and mode ~= 'peek' then need('stock').begin(hits[h][1]) end
end

for h = 1, #hits do
  if hits[h].ahead then need('ahead').begin(hits[h]) end
end

if mode == 'refund' then
  for _, hit in ipairs(hits) do
    for _, limit in ipairs(hit) do
      need('restore')[limit.name].refund(limit)
    end
    hit.actual = 0
  end
elseif mode == 'adjust' then
  need('adjust').adjust(hits, keys_read)
end

for h = 1, #hits do
  local hit = hits[h]
  for i = 1, #hit do
    local limit = hit[i]
    look(limit)
    if hit.status then need('subject_status').shut_out(limit, hit.stop) end
    if limit.refused then
      refused = refused or {}
      refused[hit.group] = true
      hit.refused = true
    end
  end
  if hit.status then need('flag')(hit, hit.status, hit.stop) end
  if emits and hit.ahead and hit.spent > 0 and hit.warn > 0 and mode ~= 'peek' then need('near')(hit, hit.spent) end
end

if mode == 'check' then
  for h = 1, #hits do
    local hit = hits[h]
    if hit.cost == 0 then
      -- The hit asks whether there is room, and changes nothing.
    elseif refused and (refused[0] or refused[hit.group]) then -- a banned hit is refused, too
      -- A refusal stands even if it cannot be counted and emitted.
      need('try_write')(need('refusal'), hit)
    else
      local warn = emits and hit.warn or 0
      local is_near = false
      for i = 1, #hit do
        local limit = hit[i]
        limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.consume(limit)
        local used = limit.capacity - limit.remaining - (limit.out or 0)
        local threshold = limit.capacity * warn / 1000
        -- Most hits cross no share, and need no such module, which says whether the limit is near.
        if warn > 0 and used >= threshold and (hit.shares or used - hit.cost < threshold) then is_near = true end
      end
      if hit.day_key then count_day(hit.day_key, hit.rule, ':a', hit.cost, hit.tier) end
      if is_near then need('near')(hit, hit.cost) end
      if hit.ahead then need('ahead').take(hit) end
    end
  end
end

if mode == 'force' then need('force')(hits) end
if mode == 'refund' or mode == 'adjust' then need('adjust').judge_near(hits) end
if mode == 'adjust' then need('adjust').answer(hits) end

local parts = { struct.pack('<i8i8', now, refused and refused[0] and 0 or 1) }
for h = 1, #hits do
  for _, limit in ipairs(hits[h]) do
    parts[#parts + 1] = struct.pack('<i8i8i8i8i8',
      limit.refused and 0 or 1, limit.remaining, limit.retry_after, limit.reset, limit.more)
  end
end
for i = 1, flags and #flags or 0 do parts[#parts + 1] = struct.pack('<i8', flags[i]) end
return table.concat(parts)
