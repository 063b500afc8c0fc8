"""Names of any bytes: none breaks out of a page, a line of a terminal or a log, JSON, CSV, or a program's arguments."""

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
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
"""A rule's name cannot have half a character."""

NEVER_RAW = {chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E, 0x2066, 0x200B, 0xFEFF)}


def is_one_line(text: str) -> bool:
    """Say whether a line of a log or a terminal is what it looks like."""
    return not NEVER_RAW & set(text) and not any("\ud800" <= character <= "\udfff" for character in text)


@pytest.fixture
def counted(db: None) -> None:
    """A day's count of each subject."""
    for subject, rule in zip(SUBJECTS, NAMES_OF_RULES, strict=True):
        saved = adapters.read_subject(subject)
        DailyCounter.objects.create(subject=saved, rule=rule.replace("\0", ""), day="2026-11-21", allowed=1)


@pytest.fixture
def played(one_redis: Any, counted: None, settings: Any) -> None:
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
    count_what_waits()


def page_of(root: Any, address: str, subject: str) -> Any:
    name = subject.encode("utf-8", "surrogatepass")
    reply = root.get(address, {"subject": name, "who": name, "on": json.dumps([MARKUP]), "sizes": "1"})
    assert reply.status_code < 500, (address, subject)
    return reply


def pages_that_show_names(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield every page of the admin, and those of each subject, with its address."""
    asked = [(address, "") for address in addresses()]
    asked += [(address, SUBJECTS[0]) for address, _ in asked if "/subject/" in address or "/usage/" in address]
    asked += [(f"{ROOT}django_quota/subject/", subject) for subject in SUBJECTS[1:]]
    for address, subject in asked:
        reply = page_of(root, address, subject)
        if reply.streaming or not reply.content:
            reply.close()
        else:
            yield f"{address} for {subject!a}", reply


def is_bare_template(content: bytes) -> bool:
    return b"{{xss" in content and b"&lt;xss" not in content and b"u003Cxss" not in content


@pytest.mark.usefixtures("played")
@pytest.mark.django_db
def test_no_name_becomes_code_in_any_page() -> None:
    known: set[str] = set()
    code: dict[str, set[str]] = {}

    for place, reply in pages_that_show_names(superuser(MARKUP)):
        found = seen(reply)
        known |= found.names
        made = {each for each in found.names if "xss" in each or each.startswith("on")}
        made |= {each for each in found.links if each.strip().lower().startswith("javascript")}
        made |= {"{{xss}}"} if is_bare_template(reply.content) else set()
        code |= {place: made} if made else {}

    assert code == {}
    assert {"table", "form", "input", "a"} <= known, "the pages were read"


@pytest.mark.usefixtures("played")
@pytest.mark.django_db
@pytest.mark.parametrize("page", ["overview", "quotaoverride", "dailycounter"])
def test_a_page_shows_what_a_name_says(page: str) -> None:
    reply = superuser(MARKUP).get(f"{ROOT}django_quota/{page}/")

    assert b"&lt;xss onxss" in reply.content


EXPORT, USAGE = "dailycounter/export/", "dailycounter/usage/csv/?subject=path:%3D1"


def rows_of(page: str) -> list[list[str]]:
    reply = superuser(MARKUP).get(f"{ROOT}django_quota/{page}")
    return list(csv.reader(io.StringIO(reply.getvalue().decode())))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("page", [EXPORT, USAGE], ids=["export", "usage"])
def test_no_cell_of_a_csv_file_is_a_formula(page: str) -> None:
    cells = [cell for row in rows_of(page) for cell in row]

    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("page", [EXPORT, USAGE], ids=["export", "usage"])
def test_no_name_adds_a_cell_to_a_row_of_a_csv_file(page: str) -> None:
    rows = rows_of(page)

    assert {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.usefixtures("counted")
def test_a_quote_marks_a_name_that_looks_like_a_formula() -> None:
    assert any(cell.startswith("'=") for row in rows_of(EXPORT) for cell in row)


COMMANDS = ["events --last 900", "override list", "sweep", "rollup"]
COMMANDS_OF_A_SUBJECT = ["status --all @", "override clear @ --rule login", "reset @"]
in_formats = pytest.mark.parametrize("options", [[], thorough("variants", ["--json"])], ids=["text", "json"])


def said_by(words: str, subject: str, options: list[str]) -> tuple[str, str]:
    """Return what a command writes, and its errors."""
    said, errors = io.StringIO(), io.StringIO()
    given = [subject if word == "@" else word for word in f"quota_{words}".split()]
    with suppress(SystemExit):
        try:
            call_command(*given, *options, stdout=said, stderr=errors)
        except CommandError as error:
            errors.write(str(error))
    return said.getvalue(), errors.getvalue()


def assert_printable(lines: list[str]) -> None:
    assert not [ascii(line) for line in lines if not is_one_line(line) or "forged line" in line[:12]]


def assert_json(said: str) -> None:
    assert said.isascii()
    for line in said.splitlines() if said.strip() else ():
        json.loads(line)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("played")
@pytest.mark.django_db
@in_formats
@pytest.mark.parametrize("words", COMMANDS)
def test_what_a_command_says_of_all_subjects_is_printable(words: str, options: list[str]) -> None:
    said, errors = said_by(words, "", options)

    assert_printable((said + errors).split("\n"))


@pytest.mark.usefixtures("played")
@pytest.mark.django_db
@in_formats
@pytest.mark.parametrize("words", COMMANDS_OF_A_SUBJECT)
def test_what_a_command_says_of_a_subject_is_printable(words: str, options: list[str]) -> None:
    said = ["".join(said_by(words, subject, options)) for subject in SUBJECTS]

    assert_printable([line for each in said for line in each.split("\n")])


@pytest.mark.usefixtures("played")
@pytest.mark.django_db
@pytest.mark.thorough("variants")
@pytest.mark.parametrize("words", COMMANDS)
def test_each_line_that_a_command_says_of_all_subjects_is_json(words: str) -> None:
    assert_json(said_by(words, "", ["--json"])[0])


@pytest.mark.usefixtures("played")
@pytest.mark.django_db
@pytest.mark.thorough("variants")
@pytest.mark.parametrize("words", COMMANDS_OF_A_SUBJECT)
def test_each_line_that_a_command_says_of_a_subject_is_json(words: str) -> None:
    for subject in SUBJECTS:
        assert_json(said_by(words, subject, ["--json"])[0])


NAMED = [
    pytest.param(name, rule, id=f"name {number}")
    for number, (name, rule) in enumerate(zip(HOSTILE, NAMES_OF_RULES, strict=True))
]
"""Each name of a subject with one of a rule; by number, for no terminal should show what they are."""


@pytest.mark.parametrize(("name", "rule"), NAMED)
def test_no_line_of_the_log_is_forged(
    name: str, rule: str, one_redis: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = {"anonymous": "9/m", "authenticated": "9/m"}
    settings.QUOTA = {"RULES": {"tiered": {"rate": tiers, "tier": lambda request: request.headers["X-Tier"]}}}
    caplog.set_level(logging.DEBUG)

    for subject in (f"path:{name}", f"user:{name}"):
        for _ in range(2):
            check("1/m", subject, name=rule, shadow=True)
        with suppress(QuotaError), slot(rule, 1, subject=subject, lease=30):
            pass
    check("tiered", get(HTTP_X_TIER=name.encode("utf-8", "surrogatepass").decode("latin-1")))
    error_of_a_counter(one_redis, f"path:{name}")
    str(QuotaExceeded(check("0/m", f"path:{name}", name=rule)))

    logged = [record.getMessage() for record in caplog.records if record.name.startswith("django_quota")]
    assert len(logged) >= 2
    assert not [ascii(line) for line in logged if not is_one_line(line)]


def error_of_a_counter(one_redis: Any, subject: str) -> CounterError:
    """Return the error of a counter whose key holds data of another type."""
    counter("a").incr(subject)
    (key,) = one_redis.keys("*:c:a")
    one_redis.delete(key)
    one_redis.lpush(key, "no number")
    with pytest.raises(CounterError) as caught:
        counter("a").incr(subject)
    one_redis.delete(key)
    return caught.value


ERRORS: dict[str, Callable[[Any, str, str], QuotaError]] = {
    "a counter that holds something else": lambda redis, name, _: error_of_a_counter(redis, f"path:{name}"),
    "QuotaExceeded": lambda _, name, rule: QuotaExceeded(check("0/m", f"path:{name}", name=rule)),
    "StoreUnavailable": lambda _, name, __: StoreUnavailable(f"it said {name}"),
    "LeaseLost": lambda _, name, __: LeaseLost(name, adapters.read_subject(f"path:{name}")),
    "CounterError": lambda _, name, __: CounterError(name, adapters.read_subject(f"path:{name}"), "x"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize(("name", "rule"), NAMED)
def test_an_error_is_one_line_whatever_the_names(
    error: Callable[[Any, str, str], QuotaError], name: str, rule: str, one_redis: Any
) -> None:
    said = str(error(one_redis, name, rule))

    assert is_one_line(said), ascii(said)


NAMES = st.text(st.characters(), max_size=80) | st.sampled_from(HOSTILE)


@inputs(1_000)
@given(NAMES)
def test_the_subject_that_a_function_returns_is_one_line(name: str) -> None:
    subject = subject_of(always(name), get())

    assert is_one_line(subject)
    assert subject.encode()


@inputs(1_000)
@given(NAMES, NAMES)
def test_a_function_that_returns_other_names_returns_other_subjects(one: str, other: str) -> None:
    subjects = [subject_of(always(name), get()) for name in (one, other)]

    assert (subjects[0] == subjects[1]) == (one == other)
