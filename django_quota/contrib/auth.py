"""Failed logins: a backend that limits how often somebody may guess a password.

It takes a hit of the limits in `QUOTA["LOGIN"]` before any password is hashed, and gives it back if the password is
right. So attempts that run at the same time cannot pass the limit together. To know how a login ends, it asks the other
backends of AUTHENTICATION_BACKENDS itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, get_user_model, load_backend
from django.contrib.auth.signals import user_logged_in
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest
from django.utils import inspect as django_inspect
from django.utils.module_loading import import_string
from django.views.decorators.debug import sensitive_variables

from django_quota import Decision, Rule, areserve_all, reserve_all
from django_quota.adapters import has_middleware, refusal_details
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, QuotaExceeded
from django_quota.features.logins import login_hits, login_name, unlock

__all__ = ["CaptchaRequired", "LoginQuotaBackend", "LoginRefused", "unlock"]


class LoginRefused(QuotaExceeded, ValidationError):  # noqa: N818 — a kind of QuotaExceeded
    """Too many failed logins, in a request that passes no `QuotaMiddleware`.

    A form or a serializer treats it as a `ValidationError`, and shows when to try again.
    """

    def __init__(self, decision: Decision) -> None:
        QuotaExceeded.__init__(self, decision)
        ValidationError.__init__(self, refusal_details(decision).message, "too_many_logins")

    def __str__(self) -> str:
        return self.decision.explain()


class CaptchaRequired(LoginRefused):
    """This attempt needs a CAPTCHA; see `LoginQuotaBackend.needs_captcha`. Its code is `"captcha_required"`."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.code = "captcha_required"

    def __str__(self) -> str:
        return f"A CAPTCHA is needed first. {self.decision.explain()}"


class LoginQuotaBackend:
    """Limits failed logins. Put it first in AUTHENTICATION_BACKENDS.

    It limits calls of `authenticate()` with a password, and leaves all other calls to the other backends. While a limit
    is reached, it raises `QuotaExceeded` before any password is hashed. It has no permissions of its own, and
    its users are those of the other backends.
    """

    name_fields: tuple[str, ...] = ("username", "email", "phone")
    """The credentials that say who logs in, besides the `USERNAME_FIELD` of the user model."""

    # Written twice, and not as one flow: `sensitive_variables` hides no variables of a generator, and none of what it
    # calls, so an error report would show the password. A flow without the password would need a call of each backend
    # in both forms, each hiding its own variables: more code than this, and one that is left out shows the password.

    @sensitive_variables()
    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> Any:
        """Return the user that another backend accepts; None if this call is not limited.

        Raises `QuotaExceeded` if a limit is reached, and `PermissionDenied` if no backend accepts the password: Django
        asks no other backend then.
        """
        hits = self._hits(request, credentials)
        if not hits:
            return None
        try:
            reservation = reserve_all(hits)
        except QuotaExceeded as exceeded:
            _refuse(request, exceeded)
        if request is not None and self.needs_captcha(request, reservation.decision):
            reservation.cancel()
            raise CaptchaRequired(reservation.decision)
        for backend, path in self._others():
            if not _takes(backend, request, credentials):
                continue
            user = backend.authenticate(request, **credentials)
            if user is not None:
                if reservation.is_open:
                    reservation.cancel()
                return _accepted_by(user, path)
        raise PermissionDenied

    @sensitive_variables()
    async def aauthenticate(self, request: HttpRequest | None, **credentials: Any) -> Any:
        """Return the user without blocking the event loop; see `authenticate`."""
        hits = self._hits(request, credentials)
        if not hits:
            return None
        try:
            reservation = await areserve_all(hits)
        except QuotaExceeded as exceeded:
            _refuse(request, exceeded)
        if request is not None and await self.aneeds_captcha(request, reservation.decision):
            await reservation.acancel()
            raise CaptchaRequired(reservation.decision)
        for backend, path in self._others():
            if not _takes(backend, request, credentials):
                continue
            user = await backend.aauthenticate(request, **credentials)
            if user is not None:
                if reservation.is_open:
                    await reservation.acancel()
                return _accepted_by(user, path)
        raise PermissionDenied

    def get_user(self, user_id: Any) -> Any:
        """Return the user that another backend has by this key, for a session that names this backend."""
        others = [load_backend(path) for path in settings.AUTHENTICATION_BACKENDS if not _is_ours(path)]
        found = (backend.get_user(user_id) for backend in others if hasattr(backend, "get_user"))
        return next((user for user in found if user is not None), None)

    async def aget_user(self, user_id: Any) -> Any:
        """Return the user without blocking the event loop; see `get_user`."""
        return await sync_to_async(self.get_user)(user_id)

    def is_limited(self, credentials: Mapping[str, Any]) -> bool:
        """Return whether somebody may guess these credentials: by default, if there is a password."""
        return credentials.get("password") is not None

    def user_names(self, credentials: Mapping[str, Any]) -> list[str]:
        """Return the names that say who logs in. All of them are limited."""
        fields = dict.fromkeys((*self.name_fields, get_user_model().USERNAME_FIELD))
        names = [login_name(credentials.get(field)) for field in fields]
        return [name for name in names if name.strip()]

    def needs_captcha(self, request: HttpRequest, decision: Decision) -> bool:  # noqa: ARG002 — for subclasses
        """Return whether this attempt, which the limits allow, must solve a CAPTCHA first: by default never.

        `decision.remaining`: how many attempts are left after this one. If it returns True, no password is hashed, the
        attempt does not count, and `CaptchaRequired` is raised: an error of the form.
        """
        return False

    async def aneeds_captcha(self, request: HttpRequest, decision: Decision) -> bool:
        """Return the answer of `needs_captcha` from a thread; override it to ask without one."""
        return await sync_to_async(self.needs_captcha)(request, decision)

    @classmethod
    def check_quota(cls) -> Iterator[CheckMessage]:
        """Find what is wrong with AUTHENTICATION_BACKENDS and `QUOTA["LOGIN"]`; the system checks of `QUOTA` ask it."""
        yield from _check_backends(settings.AUTHENTICATION_BACKENDS)
        with suppress(ConfigurationError):  # reported with the values of the settings
            yield from _check_names(current().login)
            yield from _check_open(current().login)

    @sensitive_variables()  # again: what a coroutine calls is not hidden with it
    def _hits(self, request: HttpRequest | None, credentials: Mapping[str, Any]) -> list[tuple[Rule, str]]:
        if not self.is_limited(credentials):
            return []
        return login_hits(self.user_names(credentials), request)

    def _others(self) -> Iterator[tuple[Any, str]]:
        """Yield the backends after this one, with their paths."""
        listed = [(load_backend(path), path) for path in settings.AUTHENTICATION_BACKENDS]
        ours = [isinstance(backend, LoginQuotaBackend) for backend, _ in listed]
        for backend, path in listed[ours.index(True) + 1 :]:
            if not isinstance(backend, LoginQuotaBackend):
                yield backend, path


@sensitive_variables()
def _takes(backend: Any, request: HttpRequest | None, credentials: Mapping[str, Any]) -> bool:
    """Say whether a backend takes these credentials, as Django does."""
    try:
        _signature(backend.authenticate).bind(request, **credentials)
    except TypeError:
        return False
    return True


_signature = getattr(django_inspect, "signature", inspect.signature)
"""Django's own function reads annotations of Python 3.14, but early versions of Django 5.2 do not have it."""


def _refuse(request: HttpRequest | None, exceeded: QuotaExceeded) -> NoReturn:
    """Raise what the middleware answers with 429; without the middleware, what a form shows."""
    if request is None or has_middleware(request):
        raise exceeded
    raise LoginRefused(exceeded.decision) from exceeded


# --- the backend of a session -----------------------------------------------------------------------------------------

_ACCEPTED_BY = "_django_quota_accepted_by"
"""The attribute of a user with the path of the backend that accepted the password."""


def _accepted_by(user: Any, path: str) -> Any:
    """Return the user, with the path of the backend that accepted the password.

    Django sets `user.backend` to the backend that returns the user, which is ours.
    """
    setattr(user, _ACCEPTED_BY, path)
    return user


def name_accepting_backend(request: Any, user: Any, **_: Any) -> None:
    """Let the session of a login name the backend that accepted the password, so that ours may be removed later."""
    path, session = getattr(user, _ACCEPTED_BY, None), getattr(request, "session", None)
    if path is not None and session is not None and _is_ours(session.get(BACKEND_SESSION_KEY)):
        session[BACKEND_SESSION_KEY] = path


user_logged_in.connect(name_accepting_backend, dispatch_uid="django_quota.contrib.auth")


def _is_ours(path: object) -> bool:
    try:
        found = import_string(str(path))
    except (ImportError, RuntimeError):  # the backend or its app is missing
        return False
    return isinstance(found, type) and issubclass(found, LoginQuotaBackend)


# --- system checks ----------------------------------------------------------------------------------------------------


def _check_backends(paths: Sequence[str]) -> Iterator[CheckMessage]:
    """Find what lets passwords be checked without a limit, what lets nobody log in, and what counts twice."""
    ours = next(filter(_is_ours, paths))
    others, axes = [path for path in paths if not _is_ours(path)], [path for path in paths if path.startswith("axes.")]
    before = next((path for path in others if path not in axes and paths.index(path) < paths.index(ours)), None)
    if before is not None:
        yield Error(
            f"AUTHENTICATION_BACKENDS has {before!r} above {ours!r}: it checks passwords without a limit.",
            hint=f"Put {ours!r} first.",
            id="django_quota.E017",
        )
    if others == axes:
        yield Error(
            f"AUTHENTICATION_BACKENDS has no backend below {ours!r}: nobody can log in.",
            hint="Add, for example, 'django.contrib.auth.backends.ModelBackend'.",
            id="django_quota.E018",
        )
    if axes:
        yield CheckWarning(
            "AUTHENTICATION_BACKENDS has a backend of django-axes too: both count failed logins, and the stricter one "
            "refuses.",
            hint="Remove django-axes, or keep it for its log alone, with AXES_LOCK_OUT_AT_FAILURE = False.",
            id="django_quota.W020",
        )
    left = [name for name in dir(settings) if name.startswith("AXES_")]  # `dir` sorts them
    if left and not axes and not any(app.partition(".")[0] == "axes" for app in settings.INSTALLED_APPS):
        yield CheckWarning(
            f"{', '.join(left)}: settings of django-axes, which is not installed, have no effect.",
            hint='Remove them. QUOTA["LOGIN"] has the limits, QUOTA["TRUSTED_PROXIES"] the proxies.',
            id="django_quota.W048",
        )
    if not has_middleware():
        yield CheckWarning(
            "AUTHENTICATION_BACKENDS has LoginQuotaBackend, but MIDDLEWARE has no QuotaMiddleware: a refused login is "
            "an error of its form, with status 200, and an exception where there is no form.",
            hint="Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware.",
            id="django_quota.W023",
        )


def _check_names(rules: Sequence[Rule]) -> Iterator[CheckMessage]:
    """Find a limit by name alone that is no higher than the limit for a name and an address."""
    counts = {rule.key: min(limit.rate.count for limit in rule.limits) for rule in rules}
    by_name, by_both = counts.get(_USERNAME), counts.get((_USERNAME, "ip"), 0)
    if by_name is not None and by_name <= max(by_both, LOW):
        yield CheckWarning(
            f'QUOTA["LOGIN"] limits a user name to {by_name} failed logins from all addresses together: anybody who '
            "knows the name can lock its owner out.",
            hint="Use ['username', 'ip'] for the low limit, and a higher one for 'username', for example '100/h'.",
            id="django_quota.W019",
        )


def _check_open(rules: Sequence[Rule]) -> Iterator[CheckMessage]:
    """Find limits on logins that allow everything without the store."""
    if rules[0].on_unavailable == "allow":  # all have the same
        yield CheckWarning(
            'QUOTA["LOGIN"] has on_unavailable="allow": it fails open. While the store does not answer, anybody may '
            "guess passwords without a limit.",
            hint='Remove on_unavailable: then each process counts by itself ("local"). Or use "deny".',
            id="django_quota.W044",
        )


_USERNAME = "login:username"
"""The key of rules in `LOGIN` that count by user name."""

LOW = 20
"""A person can reach a limit by name alone by hand unless it is higher than this."""
