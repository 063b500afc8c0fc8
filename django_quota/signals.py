"""Signals of this process: a hit was refused, a ban began, a limit is near. They must not know who listens.

Each is sent after the decision, in the process and thread (or event loop) that asked for it, at most once a second for
a subject and rule while it is refused, and once for a ban and for coming near. Each carries

`rule`      the `Rule` that it is about
`subject`   whom it is about, such as `"ip:203.0.113.9"`
`decision`  the `Decision` that was made

What other processes decided is in the event stream: see `django_quota.events`.
"""

from __future__ import annotations

from django.dispatch import Signal

refused = Signal()
"""A hit was refused."""

banned = Signal()
"""A ban began: a rule's refusals were too many."""

near_limit = Signal()
"""The share of a limit that the rule's `warn_at` names has been used up."""
