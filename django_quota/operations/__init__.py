"""The operations: what stores run, each a Lua script with its executable specification. Pure."""
