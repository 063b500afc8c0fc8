"""How a request is decided: what it asks for, the overrides, one call to the store, and the decision."""
