"""The admin: overrides, daily counters, subjects and the overview, in Django's own look. It decides nothing itself."""
