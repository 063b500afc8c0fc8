-- event_log_keys: the keys of the log for append_events. It goes between clock and event_log.
--
-- KEYS   [1] the event stream; [2] the index of bans; [3] the stream of bans alone
-- ARGV   [2] how many events the stream keeps
-- reply  that of the script after it
local events_key, bans_key, banned_key = KEYS[1], KEYS[2], KEYS[3]
local stream_length = tonumber(ARGV[2])
