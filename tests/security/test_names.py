"""Names of any bytes: none breaks out of a page, a line of a terminal or a log, JSON, CSV, or a program's arguments."""

import csv
import io
import json
import logging
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from django_quota import adapters, check, counter, reserve, slot
from django_quota.exceptions import CounterError, LeaseLost, QuotaError, QuotaExceeded, StoreUnavailable
from django_quota.models import DailyCounter, QuotaOverride
from tests.admin.operators import superuser
from tests.security.pages import ROOT, addresses, seen
from tests.support.calls import always, get, subject_of
from tests.support.counts import count_what_waits
from tests.support.inputs import inputs
from tests.support.selection import thorough

MARKUP = "\"'><xss onxss=1 style=xss>&lt;xss&gt;{{xss}}{% xss %}</script></textarea></title><xss>"
HOSTILE = [
    MARKUP, "javascript:xss()", "a\nERROR django_quota forged line", "a\r\nX-Forged: 1\r\n\r\n",
    "\x1b[2J\x1b]0;title\x07\x9b31m", "a\u202egnp.exe\u2066\u200b\ufeff", "line\u2028separator\u2029\x85\x0b\x0c",
    "\ud800\udfff half", "\x00null", "=cmd|'/c calc'!A1", "+1", "@SUM(1)", "-rf",
    "$(touch pwned) `touch pwned` ; touch pwned | touch pwned", "é" * 400, "~" + "0" * 64, "{}}{quota:1:{!}:events",
    "%0a%1b%2525", "../../../etc/passwd", "*?[a-z]\\", " ", "\u0430dmin", "🎈",
]  # fmt: skip
SUBJECTS = [f"{'path' if number % 2 else 'user'}:{name}" for number, name in enumerate(HOSTILE)]
NAMES_OF_RULES = [name.encode(errors="replace").decode() for name in HOSTILE]
"""Halves of characters are no names of rules."""

NEVER_RAW = {chr(sign) for sign in (*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E, 0x2066, 0x200B, 0xFEFF)}


def is_one_line(text: str) -> bool:
    """Say whether a line of a log or a terminal is what it looks like."""
    return not NEVER_RAW & set(text) and not any("\ud800" <= sign <= "\udfff" for sign in text)


@pytest.fixture
def played(one_redis: Any, settings: Any) -> None:
    """Everything that may be named is named by an enemy, and shown somewhere."""
    settings.QUOTA = {"RULES": {"login": "5/m"}}
    User.objects.create_user("1", first_name=MARKUP, last_name=MARKUP, email="xss@example.org")
    for subject, rule in reversed(list(zip(SUBJECTS, NAMES_OF_RULES, strict=True))):
        for _ in range(3):
            check("1/m", subject, name=f"rule {rule}", ban={"after": "1/m", "for": ["1h"]})
            check("login", subject)
        reserve("500/h", subject, 5, name="tokens").__enter__()
        slot(f"slot {MARKUP}", 1, subject=subject, lease=600).acquire()
        saved = adapters.read_subject(subject)
        reason = (MARKUP + subject).encode(errors="replace").decode().replace("\0", "")
        QuotaOverride.objects.create(subject=saved, rule="login", rate="5/m", reason=reason)
        DailyCounter.objects.create(subject=saved, rule=rule.replace("\0", ""), day="2026-11-21", allowed=1)
    count_what_waits()


@pytest.mark.usefixtures("played")
@pytest.mark.django_db(transaction=True)
def test_nothing_breaks_out_of_any_page_and_no_cell_of_the_csv_is_a_formula() -> None:
    root: Any = superuser(MARKUP)
    known: set[str] = set()
    asked = [(address, "") for address in addresses()]
    asked += [(address, SUBJECTS[0]) for address, _ in asked if "/subject/" in address or "/usage/" in address]
    asked += [(f"{ROOT}django_quota/subject/", subject) for subject in SUBJECTS[1:]]
    for address, subject in asked:
        name = subject.encode("utf-8", "surrogatepass")
        reply = root.get(address, {"subject": name, "who": name, "on": json.dumps([MARKUP]), "sizes": "1"})
        assert reply.status_code < 500, (address, subject)
        if reply.streaming or not reply.content:
            reply.close()
            continue
        found = seen(reply)
        known |= found.names
        assert not {each for each in found.names if "xss" in each or each.startswith("on")}, (address, subject)
        assert not {each for each in found.links if each.strip().lower().startswith("javascript")}, address
        assert b"{{xss" not in reply.content or b"&lt;xss" in reply.content or b"u003Cxss" in reply.content
    assert {"table", "form", "input", "a"} <= known
    for page in ("overview", "quotaoverride", "dailycounter"):
        assert b"&lt;xss onxss" in root.get(f"{ROOT}django_quota/{page}/").content, "they are shown at all"
    for page in ("dailycounter/export/", "dailycounter/usage/csv/?subject=path:%3D1"):
        lines = b"".join(root.get(f"{ROOT}django_quota/{page}").streaming_content).decode()
        rows = list(csv.reader(io.StringIO(lines)))
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert {len(row) for row in rows} == {len(rows[0])}
        assert "usage" in page or any(cell.startswith("'=") for row in rows for cell in row)


COMMANDS = [
    "events --last 900", "override list", "sweep", "rollup", "status --all @", "override clear @ --rule login",
    "reset @",
]  # fmt: skip


@pytest.mark.usefixtures("played")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_json", [False, thorough("variants", True)])
def test_what_a_command_says_is_printable_and_its_json_is_json(is_json: bool) -> None:
    for words, subject in product(COMMANDS, SUBJECTS):
        if "@" not in words and subject != SUBJECTS[0]:
            continue
        said, errors = io.StringIO(), io.StringIO()
        given = [subject if word == "@" else word for word in f"quota_{words}".split()] + ["--json"] * is_json
        with suppress(SystemExit):
            try:
                call_command(*given, stdout=said, stderr=errors)
            except CommandError as error:
                errors.write(str(error))
        for line in (said.getvalue() + errors.getvalue()).split("\n"):
            assert is_one_line(line), (given, ascii(line))
            assert "forged line" not in line[:12]
        if is_json and said.getvalue().strip():
            assert said.getvalue().isascii()
            for line in said.getvalue().splitlines():
                json.loads(line)


def test_no_line_of_the_log_and_no_error_is_forged(
    one_redis: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tiers = {"anonymous": "9/m", "authenticated": "9/m"}
    settings.QUOTA = {"RULES": {"tiered": {"rate": tiers, "tier": lambda request: request.headers["X-Tier"]}}}
    errors: list[QuotaError] = []
    for name, rule in zip(HOSTILE, NAMES_OF_RULES, strict=True):
        for subject in (f"path:{name}", f"user:{name}"):
            for _ in range(2):
                check("1/m", subject, name=rule, shadow=True)
            with suppress(QuotaError), slot(rule, 1, subject=subject, lease=30):
                pass
        check("tiered", get(HTTP_X_TIER=name.encode("utf-8", "surrogatepass").decode("latin-1")))
        counter("a").incr(f"path:{name}")
        (key,) = one_redis.keys("*:c:a")
        one_redis.delete(key)
        one_redis.lpush(key, "no number")
        with pytest.raises(CounterError) as caught:
            counter("a").incr(f"path:{name}")
        one_redis.delete(key)
        refused = QuotaExceeded(check("0/m", f"path:{name}", name=rule))
        hidden = adapters.read_subject(f"path:{name}")
        errors += [caught.value, refused, StoreUnavailable(f"it said {name}")]
        errors += [LeaseLost(name, hidden), CounterError(name, hidden, "x")]
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("django_quota")]
    assert len(logged) >= 2 * len(HOSTILE)
    assert not [ascii(line) for line in (*logged, *map(str, errors)) if not is_one_line(line)]


NAMES = st.text(st.characters(), max_size=80) | st.sampled_from(HOSTILE)


@inputs(1_000)
@given(NAMES, NAMES)
def test_what_a_function_returns_as_a_subject_is_one_line_and_nobody_elses(one: str, other: str) -> None:
    subjects = [subject_of(always(name), get()) for name in (one, other)]
    assert (subjects[0] == subjects[1]) == (one == other)
    for subject in subjects:
        assert is_one_line(subject)
        subject.encode()
