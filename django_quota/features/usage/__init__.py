"""Usage: what subjects have used on each day, for bills and charts."""
