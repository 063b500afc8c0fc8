"""Who set a ban or raised a limit, and why: what calls take as `by=` and `reason=`, and the admin's log of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.apps import apps

from django_quota.core.errors import RuleError
from django_quota.subjects.subject import is_user, user_subject

MAX_REASON = 500
"""The most characters of a reason."""

MAX_NAME = 200
"""The most characters of the name of who did something."""


class Author(NamedTuple):
    """Who did something, and why."""

    name: str
    """The name of the user, or what the call gave; empty if it says nothing."""
    subject: str
    """The same for events: the subject of the user."""
    reason: str
    user: Any = None
    """The user, if it is one."""

    @classmethod
    def of(cls, by: object, reason: object) -> Author:
        """Return who and why, of the arguments of a call. Raises `RuleError` if one is wrong."""
        if not isinstance(reason, str) or len(reason) > MAX_REASON:
            raise RuleError(f"reason={reason!r} is not a string of at most {MAX_REASON} characters.")
        said = " ".join(reason.split())
        if by is None:
            return cls("", "", said)
        if is_user(by) and by.pk is not None:  # type: ignore[attr-defined]  # `is_user` has looked
            return cls(str(by.get_username()), user_subject(by), said, by)  # type: ignore[attr-defined]
        if not isinstance(by, str) or not by.isprintable() or len(by) > MAX_NAME:
            raise RuleError(f"by={by!r} is not a saved user, or a name of at most {MAX_NAME} characters.")
        return cls(by, by, said)

    def log(self, subject: str, what: str) -> None:
        """Write what a user did into the admin's log, so that the page of the subject shows it."""
        self.log_each({subject: f"{what} ({self.reason})" if self.reason else what})

    def log_each(self, done: Mapping[str, str]) -> None:
        """Write what a user did to several subjects into the admin's log; see `log_actions`."""
        if self.user is not None:
            log_actions(done, self.user)


def log_actions(done: Mapping[str, str], user: Any) -> None:
    """Write an entry of the admin's log for each subject in `done`; the value says what was done to it."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, LogEntry  # noqa: PLC0415 — a site may have no admin
    from django.contrib.contenttypes.models import ContentType  # noqa: PLC0415 — as above

    from django_quota.models import Subject  # noqa: PLC0415 — this module is imported before there are models

    about = ContentType.objects.get_for_model(Subject, for_concrete_model=False)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=about,
            object_id=subject,
            object_repr=subject[:200],
            action_flag=CHANGE,
            change_message=what,
        )
        for subject, what in done.items()
    )
