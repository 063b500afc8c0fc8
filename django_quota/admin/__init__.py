"""The admin: overrides, daily counters, subjects and the overview, in Django's own look."""

from django_quota.admin import daily_counters, override_admin, overview, subject_views

__all__ = ["daily_counters", "override_admin", "overview", "subject_views"]  # importing them registers their admins
