"""What a request says: who it comes from, which rules apply to it, and what it costs."""
