"""The names of django-ratelimit 4.1, decided by django_quota: change the imports first, and the decorators later.

`from django_quota.contrib.django_ratelimit.decorators import ratelimit` replaces `from django_ratelimit.decorators
import ratelimit`; the modules `core`, `exceptions` and `middleware` have their old names too. docs/coming_from.md says
what is the same, and what is better. django-ratelimit need not be installed.
"""

from __future__ import annotations

ALL = (None,)
"""For `method=`: all methods of HTTP."""

UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]
"""For `method=`: the methods that change something."""
