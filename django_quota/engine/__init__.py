"""What a store runs: each operation is a Lua script and, beside it, its specification in Python."""
