-- flag: adds a flag of a hit to the reply. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  a function of the hit, the flag and its value; it replies nothing
return function(hit, flag, value)
  flags = flags or {}
  flags[#flags + 1] = hit.index
  flags[#flags + 1] = flag
  flags[#flags + 1] = value
end
