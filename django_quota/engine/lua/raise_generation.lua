-- raise_generation: lets a marker of the overrides show a later generation, unless Redis has lost one.
--
-- KEYS   [1] the marker: a whole number; it keeps its TTL
-- ARGV   [1] now: not used; [2] the generation that the marker must show at least
--        [3] the generation to raise it to; 0: the next one
-- reply  the generation that it shows then; 0 if it shows none, or one below [2]: then nothing changes
local shown = tonumber(redis.call('GET', KEYS[1]) or '0')
if shown < math.max(1, tonumber(ARGV[2])) then return 0 end
local wanted = tonumber(ARGV[3])
if wanted == 0 then wanted = shown + 1 end
if wanted > shown then
  redis.call('INCRBY', KEYS[1], integer(wanted - shown))
  shown = wanted
end
return shown
