"""System checks of where decisions are taken: the cache alias, how long it is waited for, and what a live site needs.

It must not know rules. It asks no Redis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from django_quota.conf import conf
from django_quota.exceptions import ConfigurationError
from django_quota.stores.aliases import alias_problem
from django_quota.stores.options import long_timeouts, option_problems, timeouts_not_set
from django_quota.stores.plain import PLAIN_WITHIN
from django_quota.stores.timeouts import ANSWER_WITHIN


def check_store() -> Iterator[CheckMessage]:
    """Check the cache alias, and what its options say."""
    try:
        if conf.store == "memory":
            return
        alias = conf.cache
        problem = alias_problem(alias)
    except ConfigurationError:
        return  # said by the check of values
    problems = option_problems(alias) if problem is None else [problem]
    for each in problems:
        yield Error(each.message, hint=each.hint, id=f"django_quota.{each.code}")
    if not problems:
        yield from _check_timeouts(alias)


def _check_timeouts(alias: str) -> Iterator[CheckMessage]:
    missing = timeouts_not_set(alias)
    if missing:
        yield CheckWarning(
            f'CACHES["{alias}"] sets no {" and no ".join(missing)}: limits wait {ANSWER_WITHIN:g} s at most all '
            f"the same, and the admin and the commands {PLAIN_WITHIN:g} s, but the cache's own calls hang with Redis.",
            hint=f'"OPTIONS": {{{", ".join(f"{name!r}: {ANSWER_WITHIN:g}" for name in missing)}}} would do.',
            id="django_quota.W007",
        )
    for given in long_timeouts(alias):
        yield CheckWarning(
            f'CACHES["{alias}"]{given.place} is {given.value:g}: when Redis hangs, all threads that ask it stand still '
            f"for {given.value:g} s, and one of them every now and then until it answers.",
            hint=f'{ANSWER_WITHIN:g} would do. A cache that needs longer can be another alias than QUOTA["CACHE"].',
            id="django_quota.W012",
        )


@register("django_quota", deploy=True)
def check_live_site(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Find what suits a developer's machine only, for `check --deploy`."""
    return [*_check_enabled(), *_check_memory()]


def _check_enabled() -> Iterator[CheckMessage]:
    try:
        is_enabled = conf.enabled
    except ConfigurationError:
        return  # said by the check of values
    if not is_enabled:
        yield CheckWarning(
            'QUOTA["ENABLED"] is False: nothing is limited, and nobody is kept out by a ban or an override.',
            hint="True, which goes without saying, would do.",
            id="django_quota.W010",
        )


def _check_memory() -> Iterator[CheckMessage]:
    try:
        store = conf.store
    except ConfigurationError:
        return  # said by the check of values
    if store == "memory":
        yield CheckWarning(
            'QUOTA["STORE"] is "memory": each process counts for itself, so that several together admit several times '
            "the limit, and a restart forgets all.",
            hint='"redis" would do, with a cache alias of django-redis; or exactly one process.',
            id="django_quota.W011",
        )
