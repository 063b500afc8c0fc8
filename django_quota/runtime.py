"""What this process has made from the settings: one object, the only one that listens to their changes.

A layer declares a part of it: the typed settings, the limiter with its store, cached answers. A part is made when it is
first needed. So the app can be imported before Django has its settings, and used without `INSTALLED_APPS`. When a
setting changes, each part that depends on it is ended, and made again when it is next needed.

What holds no setting is of the process, and a change of settings must not end it: the overrides
(`limiting.overrides`), the background threads (`limiting.flusher`), and the leases that they renew
(`features.slots.renewal`). Each is one object beside its class.

A test may replace some of the settings (`Wanted`). `Runtime.is_tested` notices a test runner by what it has changed
since `django.setup()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections

from django_quota.core.forks import register_fork_aware

if TYPE_CHECKING:
    from django_quota.stores.base import Store

T = TypeVar("T")


class Wanted(NamedTuple):
    """What a test uses in place of the settings. None: follow the settings."""

    enabled: bool | None = None
    store: Store | None = None


class Site(NamedTuple):
    """What the settings of the site said at setup."""

    debug: bool
    databases: Mapping[str, Hashable]
    """The name, host, port and user of the database of each alias."""


class Part(Generic[T]):
    """A part of the runtime; see `Runtime.part`."""

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[], T],
        depends: Callable[[T, str], bool],
        end: Callable[[T], object],
    ) -> None:
        self._runtime = runtime
        self._make = make
        self._depends = depends
        self._end = end
        self._changes = 0
        """How often it was forgotten."""
        self.made: T | None = None
        """What was made; None if it was not needed yet."""

    def get(self) -> T:
        """Return the part. It is made if there is none."""
        return self._new() if (made := self.made) is None else made

    def _new(self) -> T:
        self._runtime.listen()
        while True:
            changes = self._changes
            made = self._make()  # without the lock: it may import a module that asks for a part
            with self._runtime.changing:
                if self.made is None and changes == self._changes:
                    self.made = made
                    return made
                kept = self.made
            self._end(made)  # another thread was faster, or a setting has just changed
            if kept is not None:
                return kept

    def forget(self) -> None:
        """End what was made. The next `get` makes it again."""
        with self._runtime.changing:
            self._changes += 1
            made, self.made = self.made, None
        if made is not None:
            self._end(made)

    def see_change(self, setting: str) -> None:
        """Forget the part if it depends on a setting that has changed, or if it is just being made."""
        made = self.made
        if made is None or self._depends(made, setting):
            self.forget()


class Runtime:
    """What a process has made from the settings."""

    def __init__(self) -> None:
        self.wanted = Wanted()
        self.site: Site | None = None
        """None before `django.setup()`, and in a site that uses us without `INSTALLED_APPS`."""
        self._parts: list[Part[Any]] = []
        self._listens = False
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked process: another thread may have held it at the fork."""
        self.changing = threading.RLock()

    def part(
        self,
        make: Callable[[], T],
        *,
        depends: Callable[[T, str], bool] = lambda *_: True,
        end: Callable[[T], object] = lambda _: None,
    ) -> Part[T]:
        """Declare a part. `depends`: whether what was made depends on a setting, by its name; by default, on each.

        `end`: closes what was made.
        """
        part = Part(self, make, depends, end)
        self._parts.append(part)
        return part

    def listen(self) -> None:
        """Listen to changes of settings from now on. Call it before a part is made."""
        if not self._listens:
            self._listens = True
            setting_changed.connect(self._see_change)

    def _see_change(self, *, setting: str, **_: object) -> None:
        for part in self._parts:
            part.see_change(setting)

    # --- test runners -------------------------------------------------------------------------------------------------

    def note_site(self) -> None:
        """Note what the settings of the site say. `AppConfig.ready` calls it, before a test runner changes anything."""
        self.site = Site(settings.DEBUG, {alias: _target(database) for alias, database in settings.DATABASES.items()})

    def is_of_site(self, alias: str) -> bool:
        """Return whether an alias has the same database as at setup. A test runner gives it a test database.

        The runner drops that database at its end, which PostgreSQL refuses while a connection to it is open.
        """
        if self.site is None or alias not in self.site.databases:
            return True
        return self.site.databases[alias] == _target(connections.settings.get(alias, {}))

    def is_tested(self) -> bool:
        """Return whether tests run: a test has set a store, or a test runner has changed DEBUG or a database."""
        if self.wanted.store is not None:
            return True
        site = self.site
        return site is not None and (site.debug != settings.DEBUG or not all(map(self.is_of_site, site.databases)))


def _target(database: Mapping[str, Any]) -> Hashable:
    """Return what identifies a database of `DATABASES`. For Oracle, a test runner changes the user."""
    return tuple([str(database.get(name) or "") for name in ("NAME", "HOST", "PORT", "USER")])


runtime = Runtime()
