"""What a store runs: each operation is a Lua script, with a specification in Python."""
