"""The commands: one file each, named as `manage.py` calls them."""
