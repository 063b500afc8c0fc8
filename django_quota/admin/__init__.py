"""The admin: overrides, daily counters, subjects, bans and the overview, in Django's own look."""

from django_quota.admin import daily_counters, override_admin, pages

# Importing them registers their admins.
__all__ = ["daily_counters", "override_admin", "pages"]
