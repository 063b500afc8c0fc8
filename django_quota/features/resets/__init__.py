"""Resets: what rules have counted is deleted, and bans are lifted."""
