-- publish_overrides: replaces all overrides of a subject.
--
-- KEYS   [1] the status of the subject: a hash, see subject_status; only its o: fields are touched
-- ARGV   [1] now in microseconds, or '' for Redis' own clock
--        [2] how long an override without an end is kept, in microseconds
--        then two for each override: its field, and its value "<mode> <from> <until> <rates>"; one that has ended is skipped
-- reply  how many overrides the hash holds now
local MINUTE = 60000000

local status_key = KEYS[1]
local kept, count, longest = {}, 0, 0
for i = 3, #ARGV, 2 do
  local stop = tonumber(string.match(ARGV[i + 1], '^%l %d+ (%d+)'))
  if stop == 0 or stop > now then
    -- Adding comes first: a full server refuses a script's first write, and lets it finish later ones.
    redis.call('HSET', status_key, ARGV[i], ARGV[i + 1])
    kept[ARGV[i]] = true
    count = count + 1
    longest = math.max(longest, stop == 0 and tonumber(ARGV[2]) or stop - now + MINUTE)
  end
end
if count > 0 then keep(status_key, longest) end
for _, field in ipairs(redis.call('HKEYS', status_key)) do
  if string.sub(field, 1, 2) == 'o:' and not kept[field] then redis.call('HDEL', status_key, field) end
end
return count
