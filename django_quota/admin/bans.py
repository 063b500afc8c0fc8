"""The admin page of bans: those in force, by subject and rule; those that began recently; setting and lifting them.

A ban that somebody sets here is a block: an override with a reason and an end. It holds for every rule and while the
store is down. The list has blocks first, and then what the rules have banned.

The search is a POST, as on the page of a subject, so a plain value never becomes part of a URL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.base import LOCKOUT, ReadOnlyAdmin, lockout_of, may_see_users, names_among
from django_quota.admin.subject_actions import (
    BanForm,
    Block,
    Clear,
    LiftBan,
    SubjectAction,
    lifted_in_words,
    run_action,
)
from django_quota.admin.wording import STATES, override_state
from django_quota.conf import current
from django_quota.core.errors import QuotaError, RuleError, StoreUnavailable
from django_quota.core.keys import field
from django_quota.core.rules import Rule
from django_quota.error_texts import error_in_words
from django_quota.features.authors import log_actions
from django_quota.features.bans import (
    MOST_BANS,
    ActiveBan,
    BanFilter,
    BanList,
    RecentBans,
    fates,
    find_bans,
    lift_bans,
    read_bans,
    recent_bans,
)
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.override_rows import microseconds_of_row, write_database
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride, QuotaOverrideQuerySet
from django_quota.operating.health import nothing_is_limited
from django_quota.operating.lookup import MAX_USERS, find_subjects, is_group
from django_quota.subjects.subject import is_bare, named_subject, override_subject

PER_PAGE = 50
"""Rows on a page of bans, and in the list of bans that began recently."""

MAX_LIFTED = 1_000
"""The most bans that one action lifts."""

BANS_NAMED = 20
"""The most bans that the confirmation names."""

FATES = {
    "in force": gettext_lazy("in force"),
    "ended": gettext_lazy("ended"),
    "lifted": gettext_lazy("lifted"),
    "replaced": gettext_lazy("replaced by a newer one"),
}


class BanPages(ReadOnlyAdmin):
    """The list of bans, the form of a new one, and the confirmation before many are lifted."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_ban"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("lift/", view(self.lift_view), name=f"{name}_lift"),
            path("set/", view(self.set_view), name=f"{name}_set"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the bans; a POST searches for a subject."""
        self.check_view(request)
        context: dict[str, Any] = {"wanted": BanFilter(), "MOST": MOST_BANS}
        try:
            if request.method == "POST":
                return self._list(_searched(request))
            context["wanted"] = _filter_of(request.GET)
        except RuleError as error:  # the input may hold a plain value, so it is not shown again
            context["trouble"] = error_in_words(error)
        wanted = context["wanted"]
        try:
            context |= _found(request, wanted, find_bans(wanted), recent_bans(wanted))
        except QuotaError as error:  # blocks are rows of the database: they hold, and show, without the store
            context |= _found(request, wanted, BanList([], [], 0), RecentBans([], 0))
            context["problem"] = error_in_words(error)
        return self.show(request, "ban/list", _("Bans"), **context)

    def set_view(self, request: HttpRequest) -> HttpResponse:
        """Ask who to ban, until when, and why; then save the block."""
        self.check_view(request)
        if not Block.is_allowed(request.user):
            raise PermissionDenied
        form = BanForm(request.POST or None, initial={"span": "1d", **request.GET.dict()})
        form.sees_users = may_see_users(request)
        lockout = ""
        if form.is_valid():
            action = Block(form.cleaned_data["rule"], form.cleaned_data["subject"])
            lockout = lockout_of(request, [(action.rule, action.subject)])
            if not lockout or LOCKOUT in request.POST:
                done = run_action(action, form, request.user, _("Ban"))
                if done:
                    self.message_user(request, f"{action.subject}: {done}", messages.SUCCESS)
                    return HttpResponseRedirect(self.url("changelist"))
        context = {"found": True, "form": form, "lockout": lockout, "back": self.url("changelist")}
        return self.show(request, "ban/set", _("Ban"), **context)

    def lift_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation; once that is given, lift the bans."""
        self.check_view(request)
        if not (LiftBan.is_allowed(request.user) or Clear.is_allowed(request.user)):
            raise PermissionDenied
        wanted = BanFilter()
        try:
            wanted = _filter_of(request.POST)
            chosen = [pair for pair in _chosen(request, wanted) if pair.action.is_allowed(request.user)]
        except QuotaError as error:
            self.message_user(request, error_in_words(error), messages.ERROR)
            return self._list(wanted)
        if not chosen:
            self.message_user(request, _("Select the bans to lift."), messages.WARNING)
        elif len(chosen) > MAX_LIFTED:
            words = _("You can lift at most %d bans at once. Filter the list first.") % MAX_LIFTED
            self.message_user(request, words, messages.ERROR)
        elif "confirmed" in request.POST:
            self._lift(request, chosen)
        else:
            context = {
                "subtitle": LiftBan.label,
                "number": len(chosen),
                "chosen": chosen[:BANS_NAMED],
                "more": max(0, len(chosen) - BANS_NAMED),
                "bans": json.dumps(chosen),
                "wanted": wanted,
                "names": names_among(request, (each.subject for each in chosen[:BANS_NAMED])),
                "back": self._list(wanted).url,
            }
            return self.show(request, "ban/confirm", _("Are you sure?"), **context)
        return self._list(wanted)

    def _list(self, wanted: BanFilter) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.url("changelist") + _query(wanted))

    def _lift(self, request: HttpRequest, chosen: list[ChosenBan]) -> None:
        """End these bans, and log for each subject how many were in force."""
        by_subject: dict[str, list[str]] = {}
        lifted: dict[str, int] = {}
        for each in chosen:
            if each.is_block:
                row = _blocks(BanFilter()).filter(subject=each.subject, rule=each.rule).first()
                lifted[each.subject] = lifted.get(each.subject, 0) + (1 if row is not None and row.delete()[0] else 0)
            else:
                by_subject.setdefault(each.subject, []).append(field(each.rule))
        try:
            for subject, fields in by_subject.items():
                lifted[subject] = lifted.get(subject, 0) + lift_bans(fields, subject)
        except QuotaError as error:
            self.message_user(request, error_in_words(error), messages.ERROR)
        else:
            if not any(lifted.values()):
                self.message_user(request, _("None of these bans was in force any more."), messages.WARNING)
        done = {subject: f"{LiftBan.label}: {lifted_in_words(count)}" for subject, count in lifted.items() if count}
        log_actions(done, request.user)
        if done:
            self.message_user(request, lifted_in_words(sum(lifted.values())), messages.SUCCESS)


def _found(request: HttpRequest, wanted: BanFilter, found: BanList, recent: RecentBans) -> dict[str, Any]:
    """Return the context of the list, with the blocks. Raises `StoreUnavailable` if there are bans."""
    listed = BlocksThenBans(_blocks(wanted), found.bans)
    page = Paginator(listed, PER_PAGE).get_page(request.GET.get("p"))
    newest = recent.events[:PER_PAGE]
    bans = [each for each in page if isinstance(each, ActiveBan)]
    now, in_force = read_bans([*(ban.subject for ban in bans), *(event.subject for event in newest)])
    began = {(event.subject, event.rule, event.until): event for event in recent.events}
    may_lift, may_clear = LiftBan.is_allowed(request.user), Clear.is_allowed(request.user)
    rows = []
    for each in page:
        if isinstance(each, ActiveBan):
            event, status = began.get((each.subject, each.rule, each.until)), in_force.get((each.subject, each.rule))
            value = json.dumps([each.subject, each.rule]) if may_lift and _is_named(each) else ""
            rows.append({"ban": each, "event": event, "level": status.level if status else 0, "value": value})
        else:
            value = json.dumps([each.subject, each.rule, True]) if may_clear else ""
            rows.append({"block": each, "value": value, "is_group": is_group(each.subject)})
    history = [
        *((each.at, each, None, FATES[fate]) for each, fate in zip(newest, fates(newest, now, in_force), strict=True)),
        *((_began(each), None, each, _state(each)) for each in _all_blocks(wanted)[:PER_PAGE]),
    ]
    history = sorted(history, key=lambda row: row[0], reverse=True)[:PER_PAGE]
    subjects = [each.subject for each in (*page, *newest, *(block for _, _, block, _ in history if block is not None))]
    users = [event.user for event in (*newest, *began.values()) if event.reason or event.user]
    with_ban = [name for name, rule in known_rules().items() if isinstance(rule, Rule) and rule.ban]
    return {
        "page": page,
        "rows": rows,
        "history": [
            (event, block, block is not None and is_group(block.subject), state) for _, event, block, state in history
        ],
        "since": recent.since,
        "total": found.total,
        "rules": sorted({*with_ban, *found.rules, wanted.rule} - {""}),
        "names": names_among(request, [*wanted.subjects, *subjects, *users]),
        "query": _query(wanted) or "?",
        "may_set": Block.is_allowed(request.user),
        "liftable": sum(map(_is_named, found.bans)) * may_lift + listed.number * may_clear,
        "is_memory": not get_limiter().store.is_shared,
        "has_events": bool(current().events),
        "nothing_is_limited": nothing_is_limited(),
    }


def _searched(request: HttpRequest) -> BanFilter:
    """Return the filter of the search form. Raises `RuleError` for a string that cannot be a subject."""
    text = request.POST.get("find", "").strip()
    found = find_subjects(text, with_users=may_see_users(request)) if text else []
    return BanFilter([match.subject for match in found], request.POST.get("rule", ""))


def _filter_of(given: QueryDict) -> BanFilter:
    """Return the filter of a URL, or of a form. Raises `RuleError`."""
    subjects = given.getlist("subject")[:MAX_USERS]
    return BanFilter([named_subject(subject) for subject in subjects], given.get("rule", ""))


def _query(wanted: BanFilter) -> str:
    given = {"subject": wanted.subjects, **({"rule": wanted.rule} if wanted.rule else {})}
    query = urlencode(given, doseq=True, errors="replace")
    return f"?{query}" if query else ""


class BlocksThenBans(Sequence["QuotaOverride | ActiveBan"]):
    """The rows of the list. Only the blocks of the page are read."""

    def __init__(self, blocks: QuerySet[QuotaOverride], bans: list[ActiveBan]) -> None:
        self._blocks = blocks
        self._bans = bans
        self.number = blocks.count()

    def __len__(self) -> int:
        return self.number + len(self._bans)

    def __getitem__(self, part: Any) -> Any:
        """Return a page: the slice that a `Paginator` asks for."""
        first, last = part.start - self.number, part.stop - self.number
        return [*(self._blocks[part] if first < 0 else ()), *self._bans[max(0, first) : max(0, last)]]


def _state(block: QuotaOverride) -> Any:
    """Return what became of a block, in words."""
    state = override_state(block)
    return FATES["in force"] if state == "active" else STATES[state]


def _began(block: QuotaOverride) -> int:
    """Return since when a block holds, in microseconds."""
    return microseconds_of_row(block.starts or block.created)


def _blocks(wanted: BanFilter) -> QuerySet[QuotaOverride]:
    """Return the blocks in force that fit a filter, the newest first."""
    return _all_blocks(wanted).active()


def _all_blocks(wanted: BanFilter) -> QuotaOverrideQuerySet:
    """Return the blocks that fit a filter, the newest first, even those that have ended.

    Those of a list, such as an imported one of networks, have a label, and are on the page of overrides.
    """
    rows = QuotaOverride.objects.db_manager(write_database()).get_queryset()
    rows = rows.filter(mode=QuotaOverride.Mode.BLOCKED, label="")
    if wanted.rule:
        rows = rows.filter(rule=wanted.rule)
    if wanted.subjects:
        words = [each for each in wanted.subjects if is_bare(each)]
        whole = Q(subject__in=[each for each in wanted.subjects if each not in words])
        rows = rows.filter(reduce(or_, (Q(subject__contains=word) for word in words), whole))
    return rows.order_by("-pk")


def _is_named(ban: ActiveBan) -> bool:
    """Return whether the names of the subject and the rule are kept, which it takes to lift the ban."""
    return ban.subject is not None and ban.rule is not None


class ChosenBan(NamedTuple):
    """A ban to lift."""

    subject: str
    rule: str
    is_block: bool = False
    """Whether it is an override."""

    @property
    def is_group(self) -> bool:
        """Whether it is about several subjects, which have no page."""
        return is_group(self.subject)

    @property
    def action(self) -> type[SubjectAction]:
        """What lifts it, and so needs its permission."""
        return Clear if self.is_block else LiftBan


def _chosen(request: HttpRequest, wanted: BanFilter) -> list[ChosenBan]:
    """Return the bans to lift: all that match the filter, or the selected ones.

    Raises `RuleError`.
    """
    if "all" in request.POST:
        try:
            bans = find_bans(wanted).bans
        except StoreUnavailable:  # then the list has only blocks
            bans = []
        blocks = [
            ChosenBan(*pair, is_block=True) for pair in _blocks(wanted).values_list("subject", "rule")[:MOST_BANS]
        ]
        return [*blocks, *(ChosenBan(ban.subject, ban.rule) for ban in bans if _is_named(ban))]  # type: ignore[arg-type]
    try:
        pairs = json.loads(request.POST.get("bans") or f"[{','.join(request.POST.getlist('ban'))}]")
        return [
            ChosenBan((override_subject if any(rest) else named_subject)(subject), str(rule), any(rest))
            for subject, rule, *rest in pairs
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise RuleError(_("The request names no ban.")) from error
