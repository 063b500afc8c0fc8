-- constants: the numbers that decide and its modules share. It precedes the frame, and again the modules: a function
-- that uses a local of another one takes time to make.
--
-- KEYS   none
-- ARGV   none
-- reply  none
local NEVER = -1
local SECOND, DAY = 1000000, 86400000000
local BANNED, BAN_BEGAN, REFUSAL_EMITTED, NEAR_EMITTED, BAN_LEVEL, GRANTED, LEASED = 1, 2, 3, 4, 5, 7, 8
local DRAWN_OF, DRAWN = 9, 10
-- The highest count, even past a limit: doubles lose integers far above it.
local MOST = 1000000000000000
-- A running total of a sliding window that reaches twice this number is lowered by it.
local WRAP = 2251799813685248
