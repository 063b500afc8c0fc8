"""Slots: a limited number of callers hold one at a time, each with a lease."""
