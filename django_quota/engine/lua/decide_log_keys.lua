-- decide_log_keys: where decide has the keys of the log, if it is in this slot. It goes before event_log in the module events.
--
-- KEYS   the last three: the event stream, the index of bans, the stream of bans alone
-- ARGV   [3] how many events the stream keeps
-- reply  none
local events_key, bans_key, banned_key = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local stream_length = ARGV[3]
