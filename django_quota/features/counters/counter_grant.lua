-- counter_grant: adds units to a total once for an id; they may expire.
--
-- KEYS   [1] the total; [2] the units of it that expire; [3] the mark of the id: a string, the total after it
-- ARGV   [1] now; [2] how many: a whole number from 1 up; [3] how long the counter, and the mark, live from now; [4] how
--        long the units live from now, 0 if they do not expire; all in microseconds; [5] the id, escaped
-- reply  {DONE, the total after it as a string, 1}; {DONE, the total after the first time, 0} if the id is known
local total_key, mark_key = KEYS[1], KEYS[3]
local units, ttl, span = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first = redis.call('GET', mark_key)
if first then return { DONE, first, 0 } end

local grants, problem = read_grants(1, 2)
if problem then return problem end
local tools = need_grants()
if span > 0 and not tools.make_room(grants, 1) then return { TOO_MANY, 2 } end
local drawn, expires = {}, now + span
for _, grant in ipairs(grants.live) do
  if grant.expires == expires then expires = expires + 1 end
end
if span > 0 then drawn[1] = { expires = expires, units = units, id = ARGV[5] } end
local added = tools.credit(grants, ARGV[2], drawn)
if added then return fault(added, 1) end
expire(total_key, ttl)
tools.write(grants, ttl)
local total = redis.call('GET', total_key)
redis.call('SET', mark_key, total, 'PX', lifetime(ttl))
return { DONE, total, 1 }
