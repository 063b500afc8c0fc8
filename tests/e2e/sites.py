"""The example site as `make serve` starts it, under ASGI or WSGI."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from example_project.people import PEOPLE

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {
    "index": "",
    "app": "django_quota/",
    "overview": "django_quota/overview/",
    "events": "django_quota/overview/events/",
    "bans": "django_quota/ban/",
    "new ban": "django_quota/ban/set/",
    "rules": "django_quota/knownrule/",
    "overrides": "django_quota/quotaoverride/",
    "override": "django_quota/quotaoverride/1/change/",
    "new override": "django_quota/quotaoverride/add/",
    "rule": "django_quota/quotaoverride/rule/?name=login",
    "counters": "django_quota/dailycounter/",
    "usage": "django_quota/dailycounter/usage/?subject=user:7",
    "usage of nobody": "django_quota/dailycounter/usage/",
    "subject": "django_quota/subject/?subject=user:1",
    "banned subject": "django_quota/subject/?subject=ip:192.0.2.66",
    "blocked subject": "django_quota/subject/?subject=user:7",
    "subject search": "django_quota/subject/",
    "user": "auth/user/1/change/",
}
"""The admin pages that show something of django_quota, below `/admin/`."""


PATIENCE = 300.0
"""Seconds within which the site must run all scenarios, or stop."""


class Site(NamedTuple):
    """A running site; `passwords`: of each staff user, by name; `folder`: where it keeps its files."""

    port: int
    passwords: Mapping[str, str]
    folder: Path
    said: str
    """What it printed when it was up."""


def subject(username: str) -> str:
    """Return the subject of a user of the site. They are the first rows of a new database."""
    return f"user:{[person.username for person in PEOPLE].index(username) + 1}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that processes must leave empty. Its name is short: the path of a Redis socket is bounded."""
    with tempfile.TemporaryDirectory(prefix="q-") as folder:
        yield Path(folder)
        assert not list(Path(folder).iterdir())


@contextmanager
def run_site(*options: str) -> Iterator[Site]:
    """Run `python -m example_project.serve` during the block."""
    with scratch_folder() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "example_project.serve", "--port", "0", *options],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout
            said = "".join(takewhile(lambda line: not line.startswith("Ctrl-C"), process.stdout))
            port = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
            passwords = re.findall(r"^  (\w+) +password (\S+)", said, re.MULTILINE)
            assert port, said
            assert passwords, said
            yield Site(int(port[1]), dict(passwords), folder, said)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
