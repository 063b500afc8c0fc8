"""The admin: overrides, daily counters, subjects and the overview, in Django's own look. It decides nothing itself."""

from django_quota.admin import (
    counters,  # noqa: F401 — it registers
    overrides,  # noqa: F401 — it registers
    overview,  # noqa: F401 — importing registers
    subjects,  # noqa: F401 — it registers
)
