"""The commands of `manage.py` and what they share."""
