"""The subjects that count beside another one: for a user what `QUOTA["RELATED"]` says, for an address its networks."""

from __future__ import annotations

import reprlib
from typing import Any

from django_quota.conf import current
from django_quota.core.errors import RuleError
from django_quota.core.rule_options import network_of
from django_quota.core.rules import dotted_path
from django_quota.limiting.known_rules import known_sizes
from django_quota.subjects.subject import named_subject, user_subject

MAX_RELATED = 10
"""How many subjects of a user are read."""


def networks_around(subject: str) -> list[str]:
    """Return the networks by which known rules count an address, such as `ip:203.0.113.0/24`; the smallest first."""
    if not subject.startswith("ip:"):
        return []
    try:
        own: Any = network_of(subject.removeprefix("ip:"))
    except ValueError:  # of several parts
        return []
    sizes = sorted((bits for version, bits in known_sizes() if version == own.version), reverse=True)
    return [named_subject(f"ip:{own.supernet(new_prefix=bits)}") for bits in sizes if bits < own.prefixlen]


def related_subjects(user: Any) -> list[str]:
    """Return the subjects that count for a user besides their own, at most `MAX_RELATED`; empty without `RELATED`.

    Raises `RuleError` if the function of the site fails, or if a result is not a subject.
    """
    function = current().related
    if function is None:
        return []
    whose = f'{dotted_path(function)}, QUOTA["RELATED"],'
    try:
        given: list[Any] = list(function(user))
    except Exception as error:  # of the site
        problem = f"{whose} raised {type(error).__name__} for {user_subject(user)}: {error}"
        raise RuleError(problem, "Return a list of subjects, such as [Subject('org', 7)].") from error
    wrong = next((each for each in given if not isinstance(each, str)), None)
    if wrong is not None:
        problem = f"{whose} returned {reprlib.repr(wrong)} for {user_subject(user)}."
        raise RuleError(problem, "Return subjects: Subject('org', 7), or 'org:7'.")
    found = dict.fromkeys(map(named_subject, given))
    return [each for each in found if each != user_subject(user)][:MAX_RELATED]
