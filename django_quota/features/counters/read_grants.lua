-- read_grants: opens the grants for the scripts of counters. It follows open_grants, and precedes these scripts.
--
-- KEYS   those of the script after it
-- ARGV   those of the script after it
-- reply  that of the script after it

-- Opens the grants of the total under KEYS[n], which are under KEYS[grants_n]. Returns them, nil, and the value of the
-- total's key; or nil, and the reply that says why.
local function read_grants(n, grants_n)
  local total, problem, value = read_total(n)
  if not total then return nil, problem end
  local grants, fault_of_grants = open_grants(KEYS[n], KEYS[grants_n])
  if not grants then return nil, fault(fault_of_grants, grants_n) end
  return grants, nil, value
end
