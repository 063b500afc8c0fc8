"""The database store: states are rows of PostgreSQL or SQLite."""
