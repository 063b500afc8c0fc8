-- try_write: calls a function that writes. A module of decide.
--
-- KEYS   as decide
-- ARGV   as decide
-- reply  a function; it replies nothing, and raises no error if the server is full, or a replica, and can only be read
return function(act, hit)
  local done, problem = pcall(act, hit)
  if done then return end
  local text = type(problem) == 'table' and problem.err or problem
  for _, word in ipairs({ 'OOM ', 'READONLY ', 'MISCONF ', 'NOREPLICAS ' }) do
    if string.find(text, word, 1, true) then return end
  end
  error(problem, 0)
end
