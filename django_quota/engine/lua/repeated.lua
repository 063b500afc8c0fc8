-- repeated: recognizes a message that is sent again because its answer was lost. It precedes the scripts that need it,
-- after lifetimes.
--
-- KEYS   those of the script after it; one of them holds the number of the last message of a process: a string
-- ARGV   those of the script after it
-- reply  that of the script after it
local SENT_TTL = 3600000000

-- Says whether a message with this number has been counted. Numbers of a process rise.
local function is_repeated(key, number) return tonumber(redis.call('GET', key) or 0) >= number end

-- Remembers for `span` microseconds that a message has been counted. Call it last: Redis keeps what a script did before
-- an error.
local function note_counted(key, number, span) redis.call('SET', key, integer(number), 'PX', lifetime(span)) end

