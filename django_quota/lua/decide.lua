-- decide: one plan, any number of hits (a rule for a subject), each with any number of limits; all or nothing.
-- The algorithm files, then standing, holds and telling, are put in where the line of percent signs says so.
--
-- KEYS   for each hit, in the plan's order: how the subject stands (a hash); the state of each limit; then, where its head
--        says so: the refusals on the way to a ban, the day's counts, the holds with what lies beside them
--        last, where the log is in reach: the event stream, the index of bans, the stream of bans alone
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] the mode: "check"; "peek" (spends nothing); "refund" (gives each cost back, then peeks);
--            "reserve <token> <ttl>" (checks, and notes what was spent as a hold of so many microseconds);
--            "settle <actual> <due> <token>" (makes what a hold spent what was really used, whatever the limit; then peeks)
--            and for a plan in parts (in several slots of a Cluster, or with a body to be read in between): "take"
--            (a check that may be undone); "late" (a check, where the plan is refused already); and of hits that passed
--            in a "take" "count" (counts them for the day); "undo <n|-><mark>,<mark> ..." (see undo)
--        [3] how many events the stream keeps; 0: nothing is told; -1: the log is out of reach, and the caller tells
--        then for each hit "<rule> <group> <limits> <warn> <ban> <told> <begins> <ends> <holds>" and the rate override
--        that its limits are those of, as it was published ('' for none)
--            rule: its name in the fields of hashes; group 0: its refusal refuses the plan, n: it belongs to the n-th rule
--            that decides for itself alone (a shadow, or one that does not block); limits: how many; warn: the share of
--            the limit, in thousandths, from which on it is near (0: never); ban: '-', or
--            "<capacity>;<a>;<b>;<span>,<span>": the sliding window of refusals that leads to one, and how long the first,
--            the second and so on last; told 1: its events are told; begins, ends: the edges of the day that is counted
--            (0: none is); holds: how many keys come with its holds; 0: none
--        and two for each of its limits:
--            "<algorithm> <capacity> <a> <b> <c> <counted> <value>": whole numbers, but for the value ('-': none); counted 1:
--            a refused hit is spent all the same
--            the cost of the hit, a whole number from 0 up
-- reply  {now, verdict}, five for each limit {ok, remaining, wait, reset, more}, and three for each note {hit, what, until}: whole
--        numbers, times in microseconds, hits counted from 0
--        verdict 1: allowed; 0: refused; -1: stale: the plan must be sent in another form
--        wait: where refused, until the same hit is admitted (-1: never); where admitted, how long to hold it back
--        more: until more is left than now (-1: never; nothing is used, say)
--        what 1: exempt; 2: blocked; 3: banned (until: the end, 0 for none); 4: the ban has begun now; 5: the refusal was
--            told; 6: near the limit, and told; 7: where the caller tells, which ban in a row it is (until: its number);
--            8: of a "take", for each limit that counts values: until when the value was known before (0: it was not);
--            for each bucket two: how much had been given back of it before, and how much of that by refunds;
--            9: settled late (until: when the hold was due)
--        where stale, behind the verdict three for each hit {hit, what, value}: 1: another rate override holds now (value:
--            as it was published; '' for none); 2: holds are due: their key is needed (value: with those of these limits,
--            joined by commas), or there are more than one call gives back; nothing at all where the edges of a day or a
--            calendar limit do not hold now
local NEVER = -1
local SECOND, DAY = 1000000, 86400000000
local EXEMPT, BLOCKED, BANNED, BAN_BEGAN, REFUSAL_TOLD, NEAR_TOLD, BAN_LEVEL, KNOWN_BEFORE = 1, 2, 3, 4, 5, 6, 7, 8
local SETTLED_LATE = 9
local OVERRIDDEN, HOLDS_DUE = 1, 2
-- The most that anything counts up to, also where it may pass its limit: far from where a double loses integers.
local MOST = 1000000000000000
local algorithms = {}

local mode, mode_arguments = string.match(ARGV[2], '^(%l+) ?(.*)$')
local stream_length = tonumber(ARGV[3])
local is_decided = mode == 'undo' or mode == 'count' -- what to do with the hits was decided before
local tells, events_key, bans_key, banned_key = stream_length ~= 0, nil, nil, nil
if stream_length > 0 then events_key, bans_key, banned_key = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS] end

-- %% parts %%

-- A server that is full, or a replica, may be read all the same. Does what writes, and says whether it could.
local function where_it_may_write(act, hit)
  local done, problem = pcall(act, hit)
  if done then return true end
  local text = type(problem) == 'table' and problem.err or problem
  for _, word in ipairs({ 'OOM ', 'READONLY ', 'MISCONF ', 'NOREPLICAS ' }) do
    if string.find(text, word, 1, true) then return false end
  end
  error(problem, 0)
end

local function read_limit(key, wire, cost)
  local name, capacity, a, b, c, counted, value = string.match(wire, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d) (%S+)$')
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
  local rule, group, limits, warn, ban, told, begins, ends, holds = string.match(
    ARGV[arguments_read + 1], '^(%S+) (%d+) (%d+) (%d+) (%S+) (%d) (%d+) (%d+) (%d+)$')
  local hit = {
    rule = rule, group = tonumber(group), warn = tonumber(warn), ban = ban, told = told == '1', begins = tonumber(begins),
    ends = tonumber(ends), override = ARGV[arguments_read + 2], standing_key = next_key(), index = #hits, beside = {},
  }
  arguments_read = arguments_read + 2
  for i = 1, tonumber(limits) do
    hit[i] = read_limit(next_key(), ARGV[arguments_read + 1], ARGV[arguments_read + 2])
    arguments_read = arguments_read + 2
  end
  if ban ~= '-' then hit.tally_key = next_key() end
  if hit.ends > 0 then hit.day_key = next_key() end
  if holds ~= '0' then
    if not hold then make_holds() end
    hit.holds_key = next_key()
  end
  for i = 2, tonumber(holds) do hit.beside[i - 1] = limit_beside(next_key()) end
  return hit
end

local function is_stale(hit)
  if hit.ends > 0 and (now < hit.begins or now >= hit.ends) then return true end
  for _, limit in ipairs(hit) do
    if limit.algorithm.stale and limit.algorithm.stale(limit, now) then return true end
  end
end

while arguments_read < #ARGV do
  local hit = read_hit()
  if not is_decided and is_stale(hit) then return { now, -1 } end
  hits[#hits + 1] = hit
end

local stale = { now, -1 }
if mode ~= 'settle' and not is_decided then
  for _, hit in ipairs(hits) do stand(hit, stale) end
  if #stale > 2 then return stale end
  for _, hit in ipairs(hits) do
    if hit.holds_key and (mode == 'peek' or not where_it_may_write(give_back_due, hit)) then credit_due(hit) end
    if hit.more_due then stale[#stale + 1], stale[#stale + 2], stale[#stale + 3] = hit.index, HOLDS_DUE, '' end
  end
  if #stale > 2 then return stale end
end

if mode == 'refund' then
  for _, hit in ipairs(hits) do
    for _, limit in ipairs(hit) do
      if hit.standing ~= EXEMPT then limit.algorithm.refund(limit, now) end
    end
  end
elseif mode == 'settle' then
  settle(hits[1])
elseif mode == 'undo' then
  undo_all(hits)
elseif mode == 'count' then
  for _, hit in ipairs(hits) do count(hit, true) end
end

-- refused[0]: the plan is refused; refused[n]: the n-th rule that decides for itself is.
local refused = { [0] = mode == 'late' or nil }
for _, hit in ipairs(hits) do
  for _, limit in ipairs(hit) do
    limit.ok, limit.remaining, limit.wait, limit.reset, limit.more = limit.algorithm.inspect(limit, now)
    if hit.standing == EXEMPT then
      limit.ok, limit.wait = true, 0
    elseif hit.standing then
      shut_out(limit, hit.stop)
    end
    if not limit.ok then
      hit.refused = true
      refused[hit.group] = true
    end
  end
end

local function spend(hit, limit)
  if not refused[0] and not refused[hit.group] then
    limit.remaining, limit.wait, limit.reset, limit.more = limit.algorithm.spend(limit, now)
  elseif limit.counted and limit.capacity > 0 and refused[hit.group] then
    limit.algorithm.spend(limit, now)
    -- What a refused hit has filled refuses the next one: so it is said to, and how long.
    limit.ok, limit.remaining, limit.wait, limit.reset, limit.more = limit.algorithm.inspect(limit, now)
  elseif limit.algorithm.follow_clock then
    limit.algorithm.follow_clock(limit, now)
  end
end

local notes = {}
for _, hit in ipairs(hits) do
  if hit.standing then note(notes, hit, hit.standing, hit.stop) end
  if hit.late then note(notes, hit, SETTLED_LATE, hit.late) end
end

local function leave_traces(hit)
  for _, limit in ipairs(hit) do
    if not hit.standing then spend(hit, limit) end
  end
  local passed = not refused[0] and not refused[hit.group]
  if mode == 'reserve' and passed and not hit.standing then hold(hit) end
  if mode ~= 'take' or hit.refused then count(hit, passed) end
  tell(hit, passed, notes)
  if mode == 'take' and passed and not hit.standing then note_known(notes, hit) end
end

if mode == 'check' or mode == 'reserve' or mode == 'take' or mode == 'late' then
  for _, hit in ipairs(hits) do
    if hit[1].cost > 0 then
      if hit.standing or refused[0] or refused[hit.group] then
        where_it_may_write(leave_traces, hit) -- what is not spent is decided, whether or not it can be counted and told
      else
        leave_traces(hit)
      end
    end
  end
end

local reply = { now, refused[0] and 0 or 1 }
for _, hit in ipairs(hits) do
  for _, limit in ipairs(hit) do
    reply[#reply + 1] = limit.ok and 1 or 0
    reply[#reply + 1] = limit.remaining
    reply[#reply + 1] = limit.wait
    reply[#reply + 1] = limit.reset
    reply[#reply + 1] = limit.more
  end
end
for _, number in ipairs(notes) do reply[#reply + 1] = number end
return reply
