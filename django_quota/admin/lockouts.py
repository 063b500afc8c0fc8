"""What would block the person at the admin: their own address, network or user, or everybody."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_quota.core.errors import ConfigurationError
from django_quota.core.overrides import ALL_RULES, EVERYBODY, Override, OverrideTable
from django_quota.subjects.addresses import ip_subject
from django_quota.subjects.subject import user_subject

LOCKOUT = "_locks_me_out"
"""The name of the tick with which somebody blocks themselves."""


def lockout_of(request: HttpRequest, blocks: Iterable[tuple[str, str]]) -> str:
    """Return that these blocks, each of a rule and a subject, are about the request's user, and what lifts the first.

    Empty if none is.
    """
    own = list(_own_subjects(request))
    for rule, subject in blocks:
        alone = OverrideTable([Override(0, subject, rule or ALL_RULES, "blocked")])
        mine = next((each for each in own if alone.of_subject(each)), None)
        if subject == EVERYBODY:
            said = _("This blocks everybody, and so you.")
        elif mine is not None:
            said = _("This blocks you: your own requests count for %s.") % mine
        else:
            continue
        words = ["manage.py", "quota_override", "clear", subject]
        words += [] if rule in ("", ALL_RULES) else ["--rule", rule]
        return f"{said} {_('If you lock yourself out, this command lifts it: %s') % shlex.join(words)}"
    return ""


def _own_subjects(request: HttpRequest) -> Iterator[str]:
    with suppress(ConfigurationError):  # the request has no address
        yield ip_subject(request)
    yield user_subject(request.user)  # whoever sees the admin is a user
