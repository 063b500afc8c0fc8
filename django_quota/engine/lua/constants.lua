-- constants: the numbers that decide and its modules share. It goes before the frame, and again before the modules: a function
-- that uses a local of another one takes time to make.
--
-- KEYS   none
-- ARGV   none
-- reply  none
local NEVER = -1
local SECOND, DAY = 1000000, 86400000000
local EXEMPT, BLOCKED, BANNED, BAN_BEGAN, REFUSAL_EMITTED, NEAR_EMITTED, BAN_LEVEL, KNOWN_BEFORE = 1, 2, 3, 4, 5, 6, 7, 8
local SETTLED_LATE, HELD, OVERRIDDEN, HOLDS_DUE = 9, 10, 11, 12
-- Nothing counts further than this, even past a limit: doubles lose integers far above it.
local MOST = 1000000000000000
-- A running total of a sliding window that reaches twice this goes down by it.
local WRAP = 2251799813685248
