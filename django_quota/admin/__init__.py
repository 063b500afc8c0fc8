"""The admin: overrides, daily counters, subjects, bans and the overview, in Django's own look."""

from django_quota.admin import bans, daily_counters, override_admin, overview, subject_page

# Importing them registers their admins.
__all__ = ["bans", "daily_counters", "override_admin", "overview", "subject_page"]
