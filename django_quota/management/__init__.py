"""The commands of `manage.py`, and what they share: a progress bar and the printing of JSON lines."""
