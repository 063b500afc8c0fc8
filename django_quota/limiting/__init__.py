"""How a request is decided: its plan, the overrides, one call to the store, and the decision."""
