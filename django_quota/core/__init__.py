"""Rates, rules, algorithms, decisions. No Django, no I/O."""
