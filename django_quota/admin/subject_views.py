"""The admin page of a subject: its limits, why and until when, and the actions on it.

You search for a subject by POST, so a plain value never becomes part of a URL. The page that is found has a URL, unless
the subject is too long for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_quota.admin.admin_base import (
    ReadOnlyAdmin,
    admin_url,
    may_see,
    may_see_users,
    names_among,
    reverse_admin,
    rule_url,
)
from django_quota.admin.admin_wording import WHYS, refused_until, subject_in_words
from django_quota.admin.subject_actions import ACTIONS, Action, ActionTarget, add_form_error
from django_quota.admin.subject_page import build_page, log_actions
from django_quota.conf import current, limits_logins
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.overrides import ALL_RULES
from django_quota.models import QuotaOverride, Subject
from django_quota.operating.lookup import (
    SubjectMatch,
    find_subjects,
    is_bare,
    login_names,
    login_names_among,
    subject_hint,
    user_of,
)
from django_quota.requests.subjects import login_subject, named_subject

MAX_URL = 1_500
"""Characters of the longest URL. A page with a longer one is the answer to a POST, as servers refuse long URLs."""

_TEMPLATES = "admin/django_quota/subject"


@admin.register(Subject)
class SubjectAdmin(ReadOnlyAdmin):
    """The search form and the page of one subject. A subject has no row, and the actions have their own permissions."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.action_view)
        return [path("action/<slug:name>/", view, name="django_quota_subject_action"), *super().get_urls()]

    # --- finding ------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the search form, or the page of a subject."""
        self._check_view(request)
        if request.method == "POST":
            return self._find(request)
        subject = request.GET.get("subject", "")
        if not subject:
            return self._show(request, "find", {"title": _("Find a subject")})
        try:
            return self._page(request, named_subject(subject))
        except RuleError as error:
            return self._show(request, "find", {"title": _("Find a subject"), "trouble": str(error), "asked": subject})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Redirect from a log entry to the page of its subject."""
        self._check_view(request)
        return self._redirect(request, unquote(object_id))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the page, which shows the history."""
        return self.change_view(request, object_id)

    def _check_view(self, request: HttpRequest) -> None:
        request.current_app = self.admin_site.name
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _find(self, request: HttpRequest) -> HttpResponse:
        asked = request.POST.get("subject") or request.POST.get("find", "")
        try:
            found = (
                [SubjectMatch(named_subject(asked))]
                if "subject" in request.POST
                else find_subjects(asked, with_users=may_see_users(request))
            )
        except RuleError as error:
            # The typed text may hold a plain value, so it is not shown again.
            return self._show(request, "find", {"title": _("Find a subject"), "trouble": str(error)})
        if len(found) > 1:
            return self._show(request, "choice", {"title": _("Whom do you mean?"), "found": found})
        return self._redirect(request, found[0].subject)

    def _redirect(self, request: HttpRequest, subject: str) -> HttpResponse:
        """Redirect to a subject's page, or show it if its URL would be too long."""
        url = _page_url(request, subject)
        return HttpResponseRedirect(url) if len(url) <= MAX_URL else self._page(request, subject)

    def _page(self, request: HttpRequest, subject: str) -> HttpResponse:
        user, sees_users = user_of(subject), may_see_users(request)
        own = login_names([user]) if user is not None and sees_users and limits_logins() else {}
        page = build_page(subject, request.user, own)
        shown = [subject, *(each.subject for each in page["longer"])]
        names = login_names_among(shown, [user]) if sees_users and limits_logins() else {}
        words = subject_in_words(subject, names)
        is_met = any(page.get(part) for part in ("used", "refused", "overrides", "bans", "leases", "days", "longer"))
        hint = "" if is_met else subject_hint(subject, with_users=sees_users)
        is_nobody = bool(hint) and is_bare(subject)
        if is_nobody:
            page |= {"buttons": [], "unused": []}
        longer_rows = list(_longer_rows(request, page, names))
        context = {
            "title": _("Subject"),
            "subtitle": Truncator(words).chars(80),
            "subject": subject,
            "words": words,
            "name": str(user) if user is not None and sees_users else "",
            "links": _links(request, subject, user),
            "hint": hint,
            "is_nobody": is_nobody,
            "longer": longer_rows,
            "is_refused": bool(page.get("answers") or any(row.refused for row in longer_rows)),
            "has_others": bool(page["longer"] or (subject.startswith("user:") and limits_logins())),
            "sees_overrides": may_see(request, QuotaOverride),
            "rule_url": rule_url(request, self.admin_site.name),
            "is_enabled": current().enabled,
        }
        return self._show(request, "page", page | context)

    def _show(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        given = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, **context}
        return TemplateResponse(request, f"{_TEMPLATES}/{template}.html", given)

    # --- actions ------------------------------------------------------------------------------------------------------

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask to confirm an action, or run it when it is confirmed."""
        self._check_view(request)
        action = ACTIONS.get(name)
        if action is None:
            raise Http404
        given = request.POST if request.method == "POST" else request.GET
        if not action.has_permission(request.user):
            raise PermissionDenied
        try:
            target = _target(given.get("subject", ""), given.get("on", ""))
        except RuleError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(_page_url(request, ""))
        if not action.is_allowed(request.user, target):
            raise PermissionDenied
        if request.method == "POST" and "confirmed" in request.POST:
            form = action.form_for(target, request.POST)
            if form.is_valid() and self._do(request, action, target, form):
                return self._redirect(request, target.subject)
        else:
            form = action.form_for(target)
        back = _page_url(request, target.subject)
        whose = subject_in_words(target.subject, names_among(request, [target.subject]))
        context = {
            "title": action.label,
            "subtitle": Truncator(whose).chars(80),
            "action": action,
            "target": target,
            "on": json.dumps([target.rule]),
            "warning": action.warning(target, whose),
            "form": form,
            "back": back if len(back) <= MAX_URL else "",
        }
        return self._show(request, "confirm", context)

    def _do(self, request: HttpRequest, action: Action, target: ActionTarget, form: Any) -> bool:
        """Run an action and log it. If it fails, add the error to the form and return False."""
        try:
            done = action.do(target, form.cleaned_data, request.user)
        except (ValidationError, QuotaError) as error:
            add_form_error(error, form)
            return False
        log_actions({target.subject: f"{action.label}: {done}"}, request.user)
        self.message_user(request, done, messages.SUCCESS)
        return True


def _target(subject: str, on: str) -> ActionTarget:
    """Return the target of a button. Raises `RuleError`."""
    if not on:
        return ActionTarget(named_subject(subject))
    try:
        parts = json.loads(on)
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or not parts or not all(map(is_name, parts)):
        raise RuleError(_("The request names no rule."))
    return ActionTarget(named_subject(subject), parts[0] or ALL_RULES)


def is_name(part: object) -> bool:
    """Return whether a value may be a rule: a text that every database can store."""
    return isinstance(part, str) and "\0" not in part and not any("\ud800" <= sign <= "\udfff" for sign in part)


def _page_url(request: HttpRequest, subject: str) -> str:
    query = {"subject": subject} if subject else {}
    return admin_url(request.current_app, "subject_changelist", **query)


class _LongerRow(NamedTuple):
    """A subject that the page's subject is a part of, and who refuses it until when."""

    words: str
    url: str
    refused: str


def _longer_rows(request: HttpRequest, page: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[_LongerRow]:
    for subject, refusal in page["longer"]:
        url = _page_url(request, subject)
        why = "" if refusal is None else str(WHYS.get(refusal.why, ""))
        refused = "" if refusal is None else refused_until(refusal.retry_after, page["now"], refusal.rule, why)
        yield _LongerRow(subject_in_words(subject, names), url if len(url) <= MAX_URL else "", refused)


def _links(request: HttpRequest, subject: str, user: Any) -> list[tuple[str, str]]:
    """Return the links from a subject's page that the user may follow: its user, its usage, a new override."""
    links, site = [], request.current_app
    if user is not None and may_see_users(request):
        name = f"{user._meta.app_label}_{user._meta.model_name}_change"
        links.append((_("User %s") % user, reverse_admin(site, name, quote(user.pk))))
        if limits_logins() and user.get_username():
            failed = admin_url(site, "subject_changelist", subject=login_subject(user.get_username()))
            links.append((_("Failed logins"), failed))
    asker: Any = request.user
    if asker.has_perm("django_quota.view_dailycounter"):
        links.append((_("Usage by day"), admin_url(site, "dailycounter_usage", subject=subject)))
    if asker.has_perm("django_quota.add_quotaoverride"):
        links.append((_("Add an override"), admin_url(site, "quotaoverride_add", subject=subject)))
    return [(words, url) for words, url in links if url and len(url) <= MAX_URL]
