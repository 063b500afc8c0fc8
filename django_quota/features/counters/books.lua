-- books: opens the books of the scripts of counters. It follows book, and precedes these scripts.
--
-- KEYS   those of the script after it
-- ARGV   those of the script after it
-- reply  that of the script after it

-- Opens the book of the total under KEYS[n], whose grants are under KEYS[grants_n]. Returns the book, nil, and the value
-- of the total's key; or nil, and the reply that says why.
local function read_book(n, grants_n)
  local total, problem, value = read_total(n)
  if not total then return nil, problem end
  local book, fault_of_grants = open(KEYS[n], KEYS[grants_n])
  if not book then return nil, fault(fault_of_grants, grants_n) end
  return book, nil, value
end
