-- grants_with_time: makes the functions for grants, with the time and the lifetimes that they need. It follows
-- open_grants, in a script that needs neither unless the counter has grants.
--
-- KEYS   total_key, grants_key: see grants
-- ARGV   those of the script or module after it
-- reply  that of the script or module after it

function make_grants()
  -- %% include clock %%
  -- %% include lifetimes %%
  -- %% include grants %%
end
