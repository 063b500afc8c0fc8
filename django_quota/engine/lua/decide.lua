-- decide: decides one plan: any number of hits (a rule for a subject), each with any number of limits; all or nothing.
-- The line of percent signs stands for the algorithm files, then holds, subject_status, event_log, events and compensate.
--
-- KEYS   for each hit, in the plan's order: the status of the subject (a hash); the state of each limit; then, if its head says
--        so: the refusals that lead to a ban, the counts of the day, the holds with the states of extra limits
--        last, if the log is in this slot: the event stream, the index of bans, the stream of bans alone
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] the mode: "check"; "peek" (changes nothing); "refund" (restores each cost, then peeks);
--            "reserve <token> <ttl>" (checks, and notes what was consumed as a hold for <ttl> microseconds);
--            "settle <actual> <due> <token>" (replaces what a hold consumed by what was really used, whatever the limit; then
--            peeks). For a plan in parts (several slots of a Cluster, or a body to be read in between): "tentative" (a check
--            that can be compensated); "record_refusal" (a check whose plan is refused already); and for hits that passed a
--            tentative check "record_day" (counts them for the day), "compensate <n|-><receipt>,<receipt> ..." (see compensate)
--        [3] how many events the stream keeps; 0: no events; -1: the log is in another slot, and the caller writes events
--        then for each hit "<rule> <group> <limits> <warn> <ban> <emits> <begins> <ends> <holds>" and the rate override that
--        its limits belong to, as it was published ('' for none)
--            rule: its name in the fields of hashes; group 0: a refusal refuses the plan, n: it belongs to the n-th rule that
--            decides for itself alone (a shadow, or one that does not block); limits: how many; warn: the share of the limit,
--            in thousandths, that emits "near" (0: never); ban: '-', or "<capacity>;<a>;<b>;<span>,<span>": the sliding window
--            of refusals that leads to a ban, and how long the first, the second and so on last; emits 1: its events are
--            emitted; begins, ends: the edges of the day that is counted (0: none); holds: how many keys come with its holds
--        and two for each of its limits:
--            "<algorithm> <capacity> <a> <b> <c> <counted> <value>": whole numbers except the value ('-': none); counted 1: a
--            refused hit consumes too
--            the cost of the hit, a whole number from 0 up
-- reply  {now, verdict}, five for each limit {allowed, remaining, retry_after, reset, more}, and three for each flag
--        {hit, flag, value}: whole numbers, times in microseconds, hits counted from 0. record_day replies {now, 1} only.
--        verdict 1: allowed; 0: refused; -1: RETRY_WITH: the plan must be sent in another form
--        retry_after: if refused, until the same hit is admitted (-1: never); if admitted, how long to hold it back
--        more: until more is left than now (-1: never; for example, nothing is used)
--        flag 1: exempt; 2: blocked; 3: banned (value: the end, 0 for never); 4: the ban has begun now; 5: "refused" was
--            emitted; 6: "near" was emitted; 7: if the caller writes events, the number of the ban in its row; 8: of a tentative
--            hit, for each limit that counts values: the value's earlier expiry (0: it was not known); for each bucket two: how
--            much had been restored before it, and how much of that by refunds; 9: settled late (value: when the hold was due)
--        RETRY_WITH: behind the verdict three for each reason {hit, reason, value}: 1: another rate override is in force
--            (value: as it was published; '' for none); 2: holds are due: their key is missing (value: also those of these
--            limits, joined by commas), or more are due than one call restores. No reason: the edges of a day or of a calendar
--            limit do not fit the time
local NEVER = -1
local SECOND, DAY = 1000000, 86400000000
local EXEMPT, BLOCKED, BANNED, BAN_BEGAN, REFUSAL_EMITTED, NEAR_EMITTED, BAN_LEVEL, KNOWN_BEFORE = 1, 2, 3, 4, 5, 6, 7, 8
local SETTLED_LATE = 9
local OVERRIDDEN, HOLDS_DUE = 1, 2
-- Nothing counts further than this, even past a limit: doubles lose integers far above it.
local MOST = 1000000000000000
local algorithms = {}

local mode, mode_arguments = string.match(ARGV[2], '^([%l_]+) ?(.*)$')
local stream_length = tonumber(ARGV[3])
local is_decided = mode == 'compensate' or mode == 'record_day' -- the hits were decided before
local emits, events_key, bans_key, banned_key = stream_length ~= 0, nil, nil, nil
if stream_length > 0 then events_key, bans_key, banned_key = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS] end

-- %% parts %%

-- A full server or a replica can still be read. Calls a function that writes, and says whether it could.
local function where_it_may_write(act, hit)
  local done, problem = pcall(act, hit)
  if done then return true end
  local text = type(problem) == 'table' and problem.err or problem
  for _, word in ipairs({ 'OOM ', 'READONLY ', 'MISCONF ', 'NOREPLICAS ' }) do
    if string.find(text, word, 1, true) then return false end
  end
  error(problem, 0)
end

local function read_limit(key, encoded, cost)
  local name, capacity, a, b, c, counted, value = string.match(encoded, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d) (%S+)$')
  return {
    key = key, name = name, cost = tonumber(cost), algorithm = algorithms[name], capacity = tonumber(capacity),
    a = tonumber(a), b = tonumber(b), c = tonumber(c), counted = counted == '1', value = value, credit = 0,
  }
end

local hits, keys_read, arguments_read = {}, 0, 3

local function next_key()
  keys_read = keys_read + 1
  return KEYS[keys_read]
end

local function read_hit()
  local rule, group, limits, warn, ban, emits_own, begins, ends, holds = string.match(
    ARGV[arguments_read + 1], '^(%S+) (%d+) (%d+) (%d+) (%S+) (%d) (%d+) (%d+) (%d+)$')
  local hit = {
    rule = rule, group = tonumber(group), warn = tonumber(warn), ban = ban, emits = emits_own == '1', begins = tonumber(begins),
    ends = tonumber(ends), override = ARGV[arguments_read + 2], status_key = next_key(), index = #hits, extra = {},
  }
  arguments_read = arguments_read + 2
  for i = 1, tonumber(limits) do
    hit[i] = read_limit(next_key(), ARGV[arguments_read + 1], ARGV[arguments_read + 2])
    arguments_read = arguments_read + 2
  end
  if ban ~= '-' then hit.refusals_key = next_key() end
  if hit.ends > 0 then hit.day_key = next_key() end
  if holds ~= '0' then
    if not hold then make_holds() end
    hit.holds_key = next_key()
  end
  for i = 2, tonumber(holds) do hit.extra[i - 1] = extra_limit(next_key()) end
  return hit
end

local function is_outside(hit)
  if hit.ends > 0 and (now < hit.begins or now >= hit.ends) then return true end
  for _, limit in ipairs(hit) do
    if limit.algorithm.outside and limit.algorithm.outside(limit, now) then return true end
  end
end

while arguments_read < #ARGV do
  local hit = read_hit()
  if not is_decided and is_outside(hit) then return { now, -1 } end
  hits[#hits + 1] = hit
end

local retry = { now, -1 }
if mode ~= 'settle' and not is_decided then
  for _, hit in ipairs(hits) do load_status(hit, retry) end
  if #retry > 2 then return retry end
  for _, hit in ipairs(hits) do
    if hit.holds_key and (mode == 'peek' or not where_it_may_write(restore_due, hit)) then credit_due(hit) end
    if hit.more_due then retry[#retry + 1], retry[#retry + 2], retry[#retry + 3] = hit.index, HOLDS_DUE, '' end
  end
  if #retry > 2 then return retry end
end

if mode == 'refund' then
  for _, hit in ipairs(hits) do
    for _, limit in ipairs(hit) do
      if hit.status ~= EXEMPT then limit.algorithm.refund(limit, now) end
    end
  end
elseif mode == 'settle' then
  settle(hits[1])
elseif mode == 'compensate' then
  compensate_all(hits)
elseif mode == 'record_day' then
  for _, hit in ipairs(hits) do count_day(hit, true) end
  return { now, 1 }
end

-- refused[0]: the plan is refused; refused[n]: the n-th rule that decides for itself is.
local refused = { [0] = mode == 'record_refusal' or nil }
for _, hit in ipairs(hits) do
  for _, limit in ipairs(hit) do
    limit.allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.peek(limit, now)
    if hit.status == EXEMPT then
      limit.allowed, limit.retry_after = true, 0
    elseif hit.status then
      shut_out(limit, hit.stop)
    end
    if not limit.allowed then
      hit.refused = true
      refused[hit.group] = true
    end
  end
end

local function spend(hit, limit)
  if not refused[0] and not refused[hit.group] then
    limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.consume(limit, now)
  elseif limit.counted and limit.capacity > 0 and refused[hit.group] then
    limit.algorithm.consume(limit, now)
    -- What a refused hit has filled also refuses the next one: the reply says for how long.
    limit.allowed, limit.remaining, limit.retry_after, limit.reset, limit.more = limit.algorithm.peek(limit, now)
  elseif limit.algorithm.follow_clock then
    limit.algorithm.follow_clock(limit, now)
  end
end

local flags = {}
for _, hit in ipairs(hits) do
  if hit.status then add_flag(flags, hit, hit.status, hit.stop) end
  if hit.late then add_flag(flags, hit, SETTLED_LATE, hit.late) end
end

local function leave_traces(hit)
  for _, limit in ipairs(hit) do
    if not hit.status then spend(hit, limit) end
  end
  local passed = not refused[0] and not refused[hit.group]
  if mode == 'reserve' and passed and not hit.status then hold(hit) end
  if mode ~= 'tentative' or hit.refused then count_day(hit, passed) end
  emit(hit, passed, flags)
  if mode == 'tentative' and passed and not hit.status then flag_known(flags, hit) end
end

if mode == 'check' or mode == 'reserve' or mode == 'tentative' or mode == 'record_refusal' then
  for _, hit in ipairs(hits) do
    if hit[1].cost > 0 then
      if hit.status or refused[0] or refused[hit.group] then
        where_it_may_write(leave_traces, hit) -- a refusal stands even if it cannot be counted and emitted
      else
        leave_traces(hit)
      end
    end
  end
end

local reply = { now, refused[0] and 0 or 1 }
for _, hit in ipairs(hits) do
  for _, limit in ipairs(hit) do
    reply[#reply + 1] = limit.allowed and 1 or 0
    reply[#reply + 1] = limit.remaining
    reply[#reply + 1] = limit.retry_after
    reply[#reply + 1] = limit.reset
    reply[#reply + 1] = limit.more
  end
end
for _, number in ipairs(flags) do reply[#reply + 1] = number end
return reply
