-- make_grants: makes the functions for grants. It follows open_grants, in a script that has the time and the lifetimes.
--
-- KEYS   total_key, grants_key: see grants
-- ARGV   those of the script or module after it
-- reply  that of the script or module after it

function make_grants()
  -- %% include grants %%
end
