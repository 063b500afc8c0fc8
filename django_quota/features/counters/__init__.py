"""Counters: named totals, and what changes and reads them."""
