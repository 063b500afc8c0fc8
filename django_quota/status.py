"""How a subject stands: each rule's limits, overrides, bans, holds and leases, and where each figure comes from.

It only reads. What it says is what the next check would find; it must not know how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from django.urls import get_resolver
from django.utils.translation import gettext, gettext_lazy

from django_quota import keys
from django_quota.algorithms import ALGORITHMS
from django_quota.clock import SECOND, frozen_now
from django_quota.conf import conf, current, rule_of
from django_quota.decisions import Outcome, Why
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.health import is_full, refused_change
from django_quota.limiter import get_limiter
from django_quota.operations.base import text
from django_quota.operations.forget import Forget, Place
from django_quota.operations.look import Look
from django_quota.overrides import Override, published, standing_key
from django_quota.plans import Plan, log_of
from django_quota.rules import Rule
from django_quota.stores.redis import RedisStore, time_of
from django_quota.tiers import ANONYMOUS, AUTHENTICATED
from django_quota.usage import Count, usage
from django_quota.views import rules_of_views

SCAN_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit of one rule, as it stands for the subject."""

    rule: str
    rate: str
    algorithm: str
    limit: int
    """The most that can be left."""
    used: int
    remaining: int
    retry_after: float | None
    """Seconds until one more hit is admitted: 0.0 where it would be now, None where no time helps."""
    reset_after: float
    """Seconds until nothing is used any more."""
    why: Why
    """What stands above the limit; see `Outcome.why`."""
    source: str
    """The key in Redis that the figures come from."""
    tier: str = ""
    """Which tier the limit is of, where its rule has rates by tier."""
    instead: str = ""
    """What decides a hit that would be counted, while the store takes no changes: `on_unavailable`; else empty."""

    @classmethod
    def of(cls, outcome: Outcome, source: str, tier: str = "") -> LimitStatus:
        """Read what a peek said."""
        return cls(
            outcome.rule,
            str(outcome.rate),
            outcome.of.algorithm.name,
            outcome.limit,
            max(0, outcome.limit - outcome.remaining),
            outcome.remaining,
            outcome.retry_after,
            outcome.reset_after,
            outcome.why,
            source,
            tier,
        )

    def while_store(self, refuses: str, rule: Rule) -> LimitStatus:
        """Return it as a limit of a rule while the store refuses changes by these words; empty: it takes them."""
        if not refuses or self.retry_after != 0 or self.why == "exempt" or rule.shadow:
            return self
        return replace(self, instead=rule.on_unavailable or conf.without_store(is_full=is_full(refuses)))


INSTEAD = {
    "allow": gettext_lazy("the next hit is admitted, and not counted"),
    "deny": gettext_lazy("no hit is admitted while Redis takes no changes"),
    "local": gettext_lazy("each process decides by itself while Redis takes no changes"),
}
"""What happens to a hit by each `on_unavailable`, while the store takes no changes."""


@dataclass(frozen=True, slots=True)
class Held:
    """Leases of a slot, or holds of a rule that are not settled, with the moments at which they end."""

    name: str
    ends_in: tuple[float, ...]
    """Seconds, the first one first; of very many, the first hundred or so."""
    source: str
    number: int = 0
    """How many there are."""


@dataclass(slots=True)
class SubjectStatus:
    """All that is known of a subject."""

    subject: str
    limits: list[LimitStatus] = field(default_factory=list)
    overrides: dict[str | None, Override] = field(default_factory=dict)
    """What was published for it, by rule; `"*"` for all of them."""
    bans: dict[str, float] = field(default_factory=dict)
    """Seconds until the ban ends, by rule."""
    leases: list[Held] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    days: dict[date, dict[str, Count]] = field(default_factory=dict)
    """Checks of the last days, by day and rule, as far as Redis has them."""
    refuses: str = ""
    """What the store says to a change, where it takes none; nothing is counted then."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why a rule could not be asked, by its name."""
    states: dict[str, list[str]] = field(default_factory=dict)
    """What lies in the store of a rule that could not be asked, by its name: the ids of its limits' states."""


def known_rules() -> dict[str, Rule | str]:
    """Return every rule that the settings and the views of the URLs name; a text says why one cannot be asked.

    Rules of `check("10/m", ...)` are not known beforehand: what they have counted tells of them.
    """
    rules: dict[str, Rule | str] = {}
    settings = current()
    for name in map(str, settings.rules):
        try:
            rules[name] = settings.rule(name)
        except RuleError as error:
            rules[name] = str(error)
    for rule in rules_of_views(get_resolver().url_patterns):
        rules.setdefault(rule.name, rule)
    return rules


UNLIMITED = gettext_lazy("it is unlimited")
BY_REQUEST = gettext_lazy("its rates are functions of the request")
UNNAMED = gettext_lazy("its name is none of the settings or the views, and does not say what its rate and options are")
"""Why a rule cannot be asked."""


def tiers_for(rule: Rule, subject: str) -> dict[str, Rule]:
    """Return the tiers of a rule that a subject may be in; all of them where that leaves none.

    A user is not anonymous. Who is no user is not signed in, where the key of the rule is the user; by another key,
    such as the address, both may be.
    """
    parts = rule.key if isinstance(rule.key, tuple) else (rule.key,)
    if any(part.startswith("user:") for part in subject.split("+")):
        impossible = ANONYMOUS
    else:
        impossible = AUTHENTICATED if "user" in parts else ""
    return {tier: of_tier for tier, of_tier in rule.tiers.items() if tier != impossible} or dict(rule.tiers)


def status_of(subject: str, rules: Iterable[str] | None = None) -> SubjectStatus:
    """Return how a subject stands, under these rules (None: under all that are known or have counted anything).

    Raises `RuleError` where the subject or a rule is none, `StoreUnavailable` where Redis does not answer.
    """
    store, prefix = get_limiter().store, current().prefix
    status = SubjectStatus(subject)
    found = []
    if isinstance(store, RedisStore):
        status.refuses = refused_change(store, standing_key(prefix, subject))
        found = _found(store, prefix, subject)
    asked: dict[str, Rule | str] = known_rules()
    states: dict[str, list[str]] = {}
    for _, name, state_id in (part.what.split(":", 2) for part in found if part.what.startswith("r:")):
        known = keys.named(name)
        if known is not None:
            states.setdefault(known, []).append(state_id)
            if known not in asked:
                asked[known] = _rule_by_name(known, state_id)
    if rules is not None:
        asked = {name: asked.get(name) or rule_of(name, {}) for name in rules}
    for name, rule in asked.items():
        if isinstance(rule, str):
            status.unread[name] = rule
        else:
            _ask(status, rule)
    banned = {limit.rule for limit in status.limits if limit.why == "banned"}
    status.bans = _bans(subject, banned) if banned else {}
    status.states = {name: sorted(states[name]) for name in status.unread if name in states}
    if isinstance(store, RedisStore):
        status.overrides = published(store, prefix, subject)
        status.leases = list(_held(store, prefix, subject, found, "l"))
        status.holds = list(_held(store, prefix, subject, found, "h"))
    status.days = usage(subject)
    return status


def _ask(status: SubjectStatus, rule: Rule, tier: str = "") -> None:
    if rule.tiers:
        for name, of_tier in tiers_for(rule, status.subject).items():
            _ask(status, of_tier, name)
        return
    if rule.dynamic:
        status.unread[rule.name] = str(BY_REQUEST)
        return
    plan = Plan(current().prefix)
    plan.add(rule, status.subject, 1)
    if not plan:
        status.unread[f"{rule.name} ({tier})" if tier else rule.name] = str(UNLIMITED)
        return
    decision = get_limiter().decide(plan, "peek")
    if not decision.outcomes:
        status.unread[rule.name] = gettext("the store does not answer")
    for outcome, step in zip(decision.outcomes, plan.steps, strict=False):
        limit = LimitStatus.of(outcome, step.key, tier)
        status.limits.append(limit.while_store(status.refuses, rule))


def _bans(subject: str, rules: Iterable[str]) -> dict[str, float]:
    """Return the seconds until the bans of a subject from these rules end, by rule."""
    now, flat = get_limiter().telling.run(Look(standing_key(current().prefix, subject), []), frozen_now())
    fields = dict(zip(map(text, flat[::2]), map(text, flat[1::2]), strict=True))
    ends = {name: int(fields.get(f"b:{keys.field(name)}", "0").split(" ")[0]) for name in sorted(rules)}
    return {name: (stop - now) / SECOND for name, stop in ends.items() if stop > now}


def _rule_by_name(name: str, state_id: str) -> Rule | str:
    """Return the rule of a state whose name may be a rate: that is what `check` calls it by."""
    for algorithm in ALGORITHMS.values():
        if state_id.startswith(f"{algorithm.code}."):
            try:
                rule = rule_of(name, {"algorithm": algorithm.name})
            except RuleError:
                break
            if state_id in {limit.state_id for limit in rule.limits}:
                return rule
    return str(UNNAMED)


def _found(store: RedisStore, prefix: str, subject: str) -> list[keys.Key]:
    """Find the keys of a subject. A walk over all of them: for a command, not for a request."""
    base = keys.subject_base(prefix, subject)
    with store.commands(store.server_of(f"{base}}}:")) as lent:
        client: Any = lent
        found = client.scan_iter(match=keys.glob(f"{base}}}:") + "*", count=SCAN_BATCH)
        read = [keys.read(prefix, text(key)) for key in found]
    return [key for key in read if key is not None]


def _held(store: RedisStore, prefix: str, subject: str, found: Iterable[keys.Key], kind: str) -> Iterator[Held]:
    base = keys.subject_base(prefix, subject)
    for part in sorted({key.what for key in found if key.what.startswith(f"{kind}:")}):
        source = f"{base}}}:{part}"
        with store.commands(store.server_of(source)) as lent:
            client: Any = lent
            now = frozen_now() or time_of(client)
            members = client.zrangebyscore(source, now + 1, "+inf", withscores=True)
        if members:
            ends_in = tuple((float(score) - now) / SECOND for _, score in members)
            yield Held(keys.named(part.split(":")[1]) or part, ends_in, source, len(ends_in))


# --- forgetting -------------------------------------------------------------------------------------------------------


def counted(subject: str, rules: Iterable[str] | None = None) -> dict[str, Place]:
    """Return what these rules (None: any) have counted for a subject and whether they ban it, by rule.

    Raises `StoreUnavailable` where Redis does not answer, `ConfigurationError` where the store is not Redis.
    """
    store, prefix = redis_store(), current().prefix
    base = keys.subject_base(prefix, subject)
    standing = keys.key_of(base, "s")
    states: dict[str, list[str]] = {}
    for key in _found(store, prefix, subject):
        kind, _, rest = key.what.partition(":")
        if kind in _COUNTED:
            states.setdefault(rest.partition(":")[0], []).append(f"{base}}}:{key.what}")
    with store.commands(store.server_of(standing)) as lent:
        client: Any = lent
        fields = [text(name) for name in client.hkeys(standing)]
    for name in fields:
        if name.startswith("b:"):
            states.setdefault(name.removeprefix("b:"), [])
    wanted = None if rules is None else {keys.field(name) for name in rules}
    return {
        keys.named(part) or part: Place(part, standing, sorted(found))
        for part, found in sorted(states.items())
        if wanted is None or part in wanted
    }


_COUNTED = frozenset("rbh")
"""The kinds of keys that a reset drops."""


def forget(places: Iterable[Place]) -> int:
    """Drop what lies in these places, and lift the bans; return how many states and bans there were."""
    settings = current()
    log = log_of(settings.prefix, settings.events) if settings.events else None
    return int(redis_store().run(Forget(list(places), log), frozen_now()))


def redis_store() -> RedisStore:
    """Return the limiter's store. Raises `ConfigurationError` where it is not Redis."""
    store = get_limiter().store
    if not isinstance(store, RedisStore):
        raise ConfigurationError(
            'QUOTA["STORE"] is not "redis": there is nothing that another process could look at.', "'redis' would do."
        )
    return store
