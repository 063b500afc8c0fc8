"""The page of a subject in the admin: how it stands, why, until when, and what may be done about it.

A subject is found by POST, so that a plain value is in no URL; its page then has one, unless the subject is too long
for it. What an act does, and who may, stands in `subject_acts`; this module only takes requests there and back.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.translation import gettext as _

from django_quota.admin.finding import Found, find
from django_quota.admin.names import may_see, may_see_users
from django_quota.admin.subject_acts import ACTS, Act, Target, explained
from django_quota.admin.subject_page import DIGESTED, note, page_of
from django_quota.admin.waiting import tell_what_waits
from django_quota.exceptions import QuotaError, RuleError
from django_quota.hints import composite_subjects, subject_hint
from django_quota.models import QuotaOverride, Subject
from django_quota.overrides import ALL_RULES
from django_quota.subjects import named_subject

LONGEST_QUERY = 1_500
"""Characters of a query above which a page is shown in answer to a POST: servers refuse long URLs."""

_TEMPLATES = "admin/django_quota/subject"


@admin.register(Subject)
class SubjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """One page, found by whom it is about."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say no: a subject has no row."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say no: what can be done has permissions of its own."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say no: it comes and goes by itself."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """Put the acts before the URLs of any model."""
        view = self.admin_site.admin_view(self.act_view)
        return [path("act/<slug:name>/", view, name="django_quota_subject_act"), *super().get_urls()]

    # --- finding ------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the page of a subject, or find one."""
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
        """Lead from an entry of the log to the page of its subject."""
        self._check_view(request)
        subject = unquote(object_id)
        if subject.startswith(DIGESTED):
            self.message_user(request, _("This subject is too long for a link: find it by its text."), messages.WARNING)
            return HttpResponseRedirect(_page_url(request, ""))
        return HttpResponseRedirect(_page_url(request, subject))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the page, which shows what was done."""
        return self.change_view(request, object_id)

    def _check_view(self, request: HttpRequest) -> None:
        request.current_app = self.admin_site.name
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _find(self, request: HttpRequest) -> HttpResponse:
        asked = request.POST.get("subject") or request.POST.get("find", "")
        try:
            found = (
                [Found(named_subject(asked))]
                if "subject" in request.POST
                else find(asked, with_users=may_see_users(request))
            )
        except RuleError as error:
            # What was typed may hold a plain value: it is not shown again.
            return self._show(request, "find", {"title": _("Find a subject"), "trouble": str(error)})
        if len(found) > 1:
            return self._show(request, "choice", {"title": _("Whom do you mean?"), "found": _shown(found)})
        return self._lead_to(request, found[0].subject)

    def _lead_to(self, request: HttpRequest, subject: str) -> HttpResponse:
        """Redirect to a subject's page, or show it where its URL would be too long."""
        url = _page_url(request, subject)
        return HttpResponseRedirect(url) if len(url) <= LONGEST_QUERY else self._page(request, subject)

    def _page(self, request: HttpRequest, subject: str) -> HttpResponse:
        page = page_of(subject, request.user)
        name = str(page.user) if page.user is not None and may_see_users(request) else ""
        context = {"title": _("Subject"), "subtitle": _short(subject), "page": page, "subject": subject, "name": name}
        context["links"] = _links(request, subject, page.user)
        is_met = page.used or page.refused or page.overrides
        context["hint"] = "" if is_met else subject_hint(subject, with_users=may_see_users(request))
        context["composite"] = composite_subjects(subject).items()
        context["sees_overrides"] = may_see(request, QuotaOverride)
        return self._show(request, "page", context)

    def _show(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        given = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, **context}
        return TemplateResponse(request, f"{_TEMPLATES}/{template}.html", given)

    # --- acts ---------------------------------------------------------------------------------------------------------

    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Say what an act will do, and do it once that is confirmed."""
        self._check_view(request)
        act = ACTS.get(name)
        if act is None:
            raise Http404
        given = request.POST if request.method == "POST" else request.GET
        if not act.may_be_allowed(request.user):
            raise PermissionDenied
        try:
            target, rate = _target(given.get("subject", ""), given.get("on", ""))
        except RuleError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(_page_url(request, ""))
        if not act.is_allowed(request.user, target):
            raise PermissionDenied
        if request.method == "POST" and "confirmed" in request.POST:
            form = act.form(request.POST)
            if form.is_valid() and self._do(request, act, target, form):
                return self._lead_to(request, target.subject)
        else:
            form = act.form(initial={"rate": rate, "span": "1d"})
        back = _page_url(request, target.subject)
        context = {
            "title": act.label,
            "subtitle": _short(target.subject),
            "act": act,
            "target": target,
            "on": json.dumps([target.rule]),
            "warning": act.warning(target),
            "form": form,
            "back": back if len(back) <= LONGEST_QUERY else "",
        }
        return self._show(request, "confirm", context)

    def _do(self, request: HttpRequest, act: Act, target: Target, form: Any) -> bool:
        """Do an act, and note it; say whether it was done. What went wrong is on the form."""
        try:
            done = act.do(target, form.cleaned_data, request.user)
        except (ValidationError, QuotaError) as error:
            explained(error, form)
            return False
        note({target.subject: f"{act.label}: {done}"}, request.user)
        self.message_user(request, done, messages.SUCCESS)
        tell_what_waits(self, request, {target.subject})
        return True


def _target(subject: str, on: str) -> tuple[Target, str]:
    """Return whom and what a button is about, and the rate that a raise begins with. Raises `RuleError`."""
    if not on:
        return Target(named_subject(subject)), ""
    try:
        parts = json.loads(on)
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or not parts or not all(map(_is_name, parts)):
        raise RuleError(_("This names no rule."))
    return Target(named_subject(subject), parts[0] or ALL_RULES), "".join(parts[1:2])


def _is_name(part: object) -> bool:
    """Say whether this may be a rule or a rate: a text that every database takes."""
    return isinstance(part, str) and "\0" not in part and not any("\ud800" <= sign <= "\udfff" for sign in part)


def _page_url(request: HttpRequest, subject: str) -> str:
    query = urlencode({"subject": subject}, errors="replace") if subject else ""
    return _reversed(request, "django_quota_subject_changelist", query=query)


def _short(subject: str) -> str:
    return subject if len(subject) <= 80 else f"{subject[:79]}…"  # noqa: PLR2004


def _shown(found: list[Found]) -> list[tuple[str, str]]:
    """Return each subject with the user's name."""
    return [(one.subject, str(one.user)) for one in found]


def _links(request: HttpRequest, subject: str, user: Any) -> list[tuple[str, str]]:
    """Return where one may go from a subject's page: its user, its overrides, its usage."""
    links = []
    query = urlencode({"subject": subject})
    if user is not None and may_see_users(request):
        name = f"{user._meta.app_label}_{user._meta.model_name}_change"
        links.append((_("User %s") % user, _reversed(request, name, quote(user.pk))))
    asker: Any = request.user
    if asker.has_perm("django_quota.view_dailycounter"):
        links.append((_("Usage by day"), _reversed(request, "django_quota_dailycounter_usage", query=query)))
    if asker.has_perm("django_quota.add_quotaoverride"):
        links.append((_("Add an override"), _reversed(request, "django_quota_quotaoverride_add", query=query)))
    return [(words, url) for words, url in links if url and len(url) <= LONGEST_QUERY]


def _reversed(request: HttpRequest, name: str, *args: Any, query: str = "") -> str:
    """Return the URL of a page of the admin; empty where this admin has none."""
    try:
        url = reverse(f"admin:{name}", args=args, current_app=request.current_app)
    except NoReverseMatch:
        return ""
    return f"{url}?{query}" if query else url
