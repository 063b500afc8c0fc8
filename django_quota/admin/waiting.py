"""Telling who has changed overrides in the admin that they do not hold yet. It must not know which page did it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_quota.conf import current
from django_quota.override_sync import are_pending, write_database


def tell_what_waits(model_admin: Any, request: HttpRequest, subjects: Collection[str]) -> None:
    """Say that changed overrides of these subjects do not hold yet, where Redis could not be told of them.

    It is looked at once the change is committed, which may be after the view has returned: a change is published then.
    """
    using = write_database()
    transaction.on_commit(partial(_tell, model_admin, request, subjects, using), using=using)


def _tell(model_admin: Any, request: HttpRequest, subjects: Collection[str], using: str) -> None:
    if current().enabled and are_pending(subjects, using):
        words = _(
            "It is saved, but Redis could not be told of it: it does not hold yet, and will soon after Redis is back."
        )
        model_admin.message_user(request, words, messages.WARNING)
