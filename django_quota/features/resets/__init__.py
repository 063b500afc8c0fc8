"""Resets: delete what rules have counted, and lift bans."""
