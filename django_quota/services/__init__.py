"""What the package does with a store: limits, counters, leases, overrides, events. No HTTP."""
