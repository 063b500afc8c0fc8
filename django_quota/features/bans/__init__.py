"""Bans: what your code calls, and what operators ask."""
