"""What a refused view raises."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied

from django_quota.core.decisions import Decision


class Ratelimited(PermissionDenied):
    """A limit was reached: Django answers 403, unless `handler403` or `RatelimitMiddleware` answers otherwise."""

    decision: Decision | None = None
    """The limit, and how long to wait."""
