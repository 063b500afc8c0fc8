"""Bans: set and lift one, and list those in force."""
