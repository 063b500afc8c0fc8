"""The example site with real processes, a real Redis and real HTTP."""

import html
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from email.message import Message
from pathlib import Path

import pytest
from django.test import RequestFactory
from django.utils import timezone

from django_quota.models import DailyCounter, QuotaOverride
from example_project import terminal
from example_project.admin_pages import OpenedPage
from example_project.client import Reply, Visitor
from example_project.people import new_accounts
from example_project.rules import cost_of_search
from example_project.scenarios import SCENARIOS, Scenario
from example_project.sending import at_once, one_after_another
from example_project.serve import main as serve
from example_project.steps import RUNS, Step, promised_by_bucket

pytestmark = pytest.mark.thorough("example")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
"""Seconds within which the site must run all scenarios, or stop."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that processes must leave empty. Its name is short, because a socket's path has a limit."""
    with tempfile.TemporaryDirectory(prefix="q-") as folder:
        yield Path(folder)
        assert not list(Path(folder).iterdir())


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "120", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    with started(folder, *arguments, **environment) as process:
        said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


@dataclass(frozen=True)
class Serving:
    """A running `make serve`."""

    port: int
    passwords: dict[str, str]
    folder: Path


@contextmanager
def serving(*options: str) -> Iterator[Serving]:
    """Run `make serve`, and stop it as a service manager does."""
    with scratch_folder() as folder, started(folder, "-m", "example_project.serve", "--port", "0", *options) as process:
        assert process.stdout
        try:
            said = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
            assert found, said
            while "Ctrl-C" not in said:
                said += process.stdout.readline()
            yield Serving(int(found[1]), dict(re.findall(r"(?m)^  (\w+) +password (\S+)", said)), folder)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture
def port(served: Serving) -> int:
    return served.port


@pytest.fixture
def visitor(port: int) -> Iterator[Visitor]:
    with Visitor(port) as someone:
        yield someone


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


# --- make demo --------------------------------------------------------------------------------------------------------


def test_the_demo_runs_every_scenario_and_all_are_as_promised(scratch: Path) -> None:
    status, said = run(scratch, "-m", "example_project.demo")
    assert status == 0, said
    for scenario in SCENARIOS:
        assert scenario.title in said
    assert "✗" not in said
    for words in (
        r"all at once: 40 sent, 10 admitted, 30 refused\n    429, Retry-After: (60|5\d)\n",
        r"all at once: 14 sent, 10 admitted, 4 refused\n    429",
        r"all at once: 60 sent, 20 admitted, 10 declined, 30 refused\n    429",
        r"until the ban: 7 sent, 5 declined, 2 refused\n    429, Retry-After: (600|59\d)\n",
        r"all at once: 5 sent, 3 admitted, 2 declined\n    409. Ann has 10, Bob has 90: 100 together",
        r"a guest: 12 .*\n.*\n.*api.*\n.*signed in: 12 sent, 12 admitted\n.*a pro: 12 sent, 12 admitted\n",
        r'one after another: 8 .*\n.*\n +RateLimit: "api";r=6;t=\d+, "api-export";r=2;t=\d+, "export-burst";r=0;',
    ):
        assert re.search(words, said), words
    for page in ("the overview", "a user's limits", "a user's year", "daily counters", "overrides"):
        assert re.search(rf"✓ {page} +200 in \d+ ms", said)


@pytest.mark.parametrize("has_rich", [True, False], ids=["with rich", "without rich"])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_value_is_broken_between_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, has_rich: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if not has_rich:
        monkeypatch.setattr(terminal, "find_spec", lambda _: None)
    limits = [f'"a-rule-with-a-name-{number}";q=100000;w=86400' for number in range(9)]
    printer = terminal.Terminal()
    with printer.progress() as report:
        report("Not shown: this is no terminal", 1, 2)
        printer.line(("✓", "green"), " one")
        printer.paragraph("RateLimit-Policy: " + ", ".join(limits), indent=4, hanging=2)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "✓ one"
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("    RateLimit-Policy:")
    assert all(line.startswith('      "') for line in lines[1:])
    assert [value.strip(",") for line in lines for value in line.split()][1:] == limits


def test_without_rich_each_task_has_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda _: None)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.Terminal(stderr=True).progress() as report:
        for done in range(3):
            report("A year of history", done, 3)
        report("The server", 0, 0)
    with terminal.Terminal(stderr=True).progress(only_bar=True) as report:
        report("Its own lines say this", 0, 0)
    assert stream.getvalue() == "A year of history ...\nThe server ...\n"


def test_the_demo_shows_why_the_server_does_not_start(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise RuntimeError('out of order')")
    status, said = run(scratch, "-m", "example_project.demo", PYTHONPATH=str(tmp_path))
    assert status == 1
    assert "The server did not start" in said
    assert "RuntimeError: out of order" in said


def test_the_demo_says_that_the_redis_of_redis_url_is_down(scratch: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        status, said = run(scratch, "-m", "example_project.demo", REDIS_URL=url)
    assert status == 1
    assert "Redis does not answer" in said


def test_ctrl_c_stops_everything_that_the_demo_started(scratch: Path) -> None:
    with started(scratch, "-m", "example_project.demo") as demo:
        assert demo.stdout
        assert "is a real server" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert "Stopped" in said


def scenario_of(slug: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.slug == slug)


REFUSAL = {"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "detail": "Too many."}


def replies(*statuses: int, without: str = "", body: object = REFUSAL) -> list[Reply]:
    headers = Message()
    for name, value in (("RateLimit", '"a";r=0;t=9'), ("RateLimit-Policy", '"a";q=1;w=60'), ("Retry-After", "9")):
        if name != without:
            headers[name] = value
    return [Reply(status, headers, json.dumps(body), time.monotonic()) for status in statuses]


def test_a_step_lists_the_differences_from_its_promises() -> None:
    scenario = SCENARIOS[0]
    assert Step(scenario, "x", replies(200, 200, 429), 2).differences == []
    assert Step(scenario, "x", replies(200, 200, 200), 2).differences == ["x: admitted of 3: 3, promised 2"]
    assert "admitted after a refusal" in Step(scenario, "x", replies(429, 200), 1).differences[0]
    assert "other answers: [500]" in Step(scenario, "x", replies(200, 500), 1).differences[0]
    assert "other answers: [403]" in Step(scenario, "x", replies(200, 403), 1).differences[0]
    bare = Reply(429, Message(), "", 0.0)
    assert len(Step(scenario, "x", [bare], 0).differences) == 3
    assert Step(scenario, "x", replies(200, 200), promised_by_bucket(1, 0.5, 2.1)).differences == []


def test_an_opened_page_lists_its_differences() -> None:
    assert not OpenedPage("x", 200, 1.0, is_ours=True).difference
    assert "answered 500" in OpenedPage("x", 500, 1.0, is_ours=True).difference
    assert "not by that page" in OpenedPage("x", 200, 1.0, is_ours=False).difference


def test_a_step_separates_declined_from_refused_requests() -> None:
    login = scenario_of("login")
    banned = {**REFUSAL, "type": REFUSAL["type"].replace("quota-exceeded", "abnormal-usage-detected")}
    assert Step(login, "x", replies(403, 200, 403, 429, body=banned), 1, 2).differences == []
    assert "the refusal's body" in Step(login, "x", replies(403, 429), 0, 1).differences[0]
    assert Step(login, "x", replies(403, 403), 0, 1).differences == ["x: declined of 2: 2, promised 1"]
    assert "other answers: [409]" in Step(login, "x", replies(409), 0).differences[0]
    assert "why the view declined" in Step(login, "x", replies(403, body={}), 0, 1).differences[0]
    assert "limits in RateLimit" in Step(login, "x", replies(403, without="RateLimit"), 0, 1).differences[0]


def test_a_scenario_may_have_headers_on_refusals_only() -> None:
    tokens = scenario_of("tokens")
    assert Step(tokens, "x", [*replies(200, without="RateLimit"), *replies(429)], 1).differences == []
    assert "limits in RateLimit" in Step(tokens, "x", replies(429, without="RateLimit"), 0).differences[0]
    assert "Retry-After" in Step(tokens, "x", replies(429, without="Retry-After"), 0).differences[0]


def test_the_numbers_of_every_scenario_add_up() -> None:
    for scenario in SCENARIOS:
        assert scenario.admits + scenario.declines <= scenario.sends
        assert bool(scenario.declines) == (scenario.declines_with is not None)
        assert not scenario.given or len(scenario.given.each) in (0, scenario.sends)
    assert {scenario.slug for scenario in SCENARIOS} >= set(RUNS)


# --- make serve -------------------------------------------------------------------------------------------------------


def test_the_front_page_lists_every_scenario(visitor: Visitor) -> None:
    page = visitor.get("/").body
    text = text_of(page)
    for scenario in SCENARIOS:
        assert f'data-url="{scenario.url}"' in page
        assert scenario.source.replace("\n", "") in text
        for words in (scenario.title, scenario.shows, scenario.button):
            assert words in text


def test_the_front_page_loads_no_external_files(visitor: Visitor) -> None:
    page = visitor.get("/").body
    linked = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(link.startswith(("/", "data:", "#")) for link in linked)
    for asset in (link for link in linked if link.startswith("/static/")):
        reply = visitor.get(asset)
        assert reply.admitted
        assert "//" not in re.sub(r'(?m)(^|\s)//.*$|xmlns="[^"]*"', "", reply.body)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.slug)
def test_every_scenario_has_its_url(visitor: Visitor, scenario: Scenario) -> None:
    given = {scenario.given.name: scenario.given.value} if scenario.given else {}
    if scenario.method == "POST":
        assert visitor.get(scenario.url).status == 405
        refused = visitor.post(scenario.url, given)  # no page was opened, so there is no CSRF token
        assert refused.status == 403
        assert "CSRF" in refused.body
        visitor.get("/")
        reply = visitor.post(scenario.url, given)
        assert reply.admitted or reply.status == scenario.declines_with
        assert "CSRF" not in reply.body
    else:
        assert visitor.get(scenario.url, given).admitted


def test_signing_in_and_out(visitor: Visitor) -> None:
    assert visitor.post("/sign-in/").status == 403
    assert 'data-form="sign-in" hidden' not in visitor.get("/").body
    assert visitor.post("/sign-in/").status == 302
    assert 'data-form="sign-in" hidden' in visitor.get("/").body
    assert visitor.post("/sign-out/").status == 302
    assert 'data-form="sign-out" hidden' in visitor.get("/").body


def test_a_browser_sees_the_429_page_each_time(visitor: Visitor) -> None:
    for _ in range(2):
        reply = visitor.get("/refused/", {"Accept": "text/html"})
        assert reply.status == 429
        assert reply.headers.get_content_type() == "text/html"
        assert reply.retry_after in range(50, 61)


def test_starting_over_resets_all_limits(visitor: Visitor) -> None:
    visitor.get("/")
    visitor.post("/start-over/")
    download = scenario_of("download")
    assert [visitor.get(download.url).status for _ in range(download.sends)] == [200] * 5 + [429] * 2
    visitor.post("/start-over/")
    assert visitor.get(download.url).admitted


def test_starting_over_fills_the_stock_and_the_accounts(port: int, visitor: Visitor) -> None:
    for slug in ("sale", "credits"):
        scenario = scenario_of(slug)
        for _ in range(2):
            visitor.get("/")
            visitor.post("/start-over/")
            answers = Counter(reply.status for reply in at_once(scenario, port))
            refused = scenario.sends - scenario.admits - scenario.declines
            assert answers == Counter({200: scenario.admits, 409: scenario.declines, 429: refused})


def test_the_right_password_resets_the_limit_before_the_ban_only(visitor: Visitor) -> None:
    login = scenario_of("login")
    visitor.get("/")
    visitor.post("/start-over/")

    def log_in(*passwords: str) -> list[int]:
        return [reply.status for reply in one_after_another(login, visitor, passwords)]

    assert log_in(*["x"] * 5, "correct horse") == [403] * 5 + [429]
    visitor.post("/start-over/")
    for _ in range(2):
        assert log_in(*["x"] * 4, "correct horse") == [403] * 4 + [200]


def test_the_server_sends_many_requests_at_once_for_the_browser(visitor: Visitor) -> None:
    report = scenario_of("report")
    assert visitor.post(f"/crowd/{report.slug}/").status == 403  # no page was opened
    visitor.get("/")
    lines = [json.loads(line) for line in visitor.post(f"/crowd/{report.slug}/").body.splitlines()]
    assert sorted(line["status"] for line in lines) == [200] * 10 + [429] * 4
    assert [line["status"] for line in lines[:4]] == [429] * 4
    assert all("RateLimit" in line["headers"] for line in lines)
    assert visitor.get(f"/crowd/{report.slug}/").status == 405
    assert visitor.post("/crowd/ip/").status == 404


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(["--port", str(port)]) == 1
    assert f"Port {port} cannot be used: it is taken" in capsys.readouterr().err
    assert serve(["--port", "99999"]) == 1


# --- the API and its rules --------------------------------------------------------------------------------------------


def test_rules_of_the_settings_limit_the_api_and_leave_its_status_alone(port: int) -> None:
    with Visitor(port, headers={"X-Forwarded-For": "203.0.113.230"}) as visitor:
        assert [visitor.get("/api/items/").status for _ in range(11)] == [200] * 10 + [429]
        assert [visitor.get("/api/status/").status for _ in range(11)] == [200] * 11
        assert "RateLimit" not in visitor.get("/api/status/").headers


def test_users_have_the_rate_of_their_tier(port: int) -> None:
    quotas = {}
    for who in ("demo", "demo-pro"):
        with Visitor(port, headers={"X-Forwarded-For": "203.0.113.231"}) as visitor:
            visitor.get("/")
            visitor.post("/sign-in/", {"who": who})
            quotas[who] = visitor.get("/api/items/").quotas["api"]
    assert quotas == {"demo": 100, "demo-pro": 1000}


@pytest.mark.parametrize(
    ("limit", "cost"), [("", 1), ("20", 1), ("21", 2), ("9999", 1), ("999", 5), ("-3", 1), ("²", 1)]
)
def test_a_search_costs_what_it_asks_for(limit: str, cost: int) -> None:
    request = RequestFactory().get("/api/search/", {"limit": limit})
    assert cost_of_search(request) == cost


def test_searches_of_the_staff_are_free(served: Serving) -> None:
    with Visitor(served.port) as visitor:
        assert visitor.post("/sign-in/", {"who": "clerk"}).status == 403  # no page was opened
        sign_in_to_the_admin(visitor, served, "clerk")
        assert visitor.get("/api/search/?limit=100").quotas == {"api": 100}


# --- the admin, and the past that it shows ----------------------------------------------------------------------------


def sign_in_to_the_admin(visitor: Visitor, served: Serving, who: str) -> None:
    visitor.get("/admin/login/")
    fields = {"username": who, "password": served.passwords[who], "next": "/admin/"}
    assert visitor.post("/admin/login/?next=/admin/", fields).status == 302


def test_nobody_signs_in_as_staff_without_a_password(visitor: Visitor) -> None:
    visitor.get("/")
    for who in ("admin", "clerk", "ines", "nobody"):
        assert visitor.post("/sign-in/", {"who": who}).status == 404


@pytest.mark.parametrize(("who", "status"), [("admin", 200), ("clerk", 200), ("intern", 403)])
def test_who_may_see_the_limits_in_the_admin(served: Serving, who: str, status: int) -> None:
    with Visitor(served.port) as visitor:
        sign_in_to_the_admin(visitor, served, who)
        for page in ("subject/", "overview/", "quotaoverride/", "dailycounter/", "dailycounter/usage/"):
            assert visitor.get(f"/admin/django_quota/{page}").status == status


def test_passwords_are_printed_and_stored_nowhere(served: Serving) -> None:
    assert set(served.passwords) == {"admin", "clerk", "intern"}
    assert len(set(served.passwords.values())) == 3
    files = [file for file in served.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".sqlite3" for file in files)
    for file in files:
        assert not [word for word in served.passwords.values() if word.encode() in file.read_bytes()]


def test_every_page_has_a_strict_content_security_policy(visitor: Visitor) -> None:
    for url in ("/", "/admin/login/", "/api/status/"):
        assert visitor.get(url).headers["Content-Security-Policy"] == "default-src 'self'; img-src 'self' data:"
    page = visitor.get("/refused/", {"Accept": "text/html"})
    page = visitor.get("/refused/", {"Accept": "text/html"})
    nonce = re.search(r'<style nonce="([^"]+)">', page.body)
    assert nonce is None or f"'nonce-{nonce[1]}'" in page.headers["Content-Security-Policy"]


def test_the_history_is_one_year_up_to_yesterday_and_always_the_same(database: object) -> None:
    from example_project import history

    def write() -> list[tuple[str, str, date, int, int]]:
        rows = DailyCounter.objects.values_list("subject", "rule", "day", "allowed", "refused")
        DailyCounter.objects.all().delete()
        progress: list[tuple[int, int]] = []
        written = history.write_history(users, lambda done, total: progress.append((done, total)))
        assert written == rows.count()
        assert progress[0] == (0, written)
        assert progress[-1] == (written, written)
        return list(rows)

    users = history.write_people(new_accounts())
    today = timezone.localdate()
    first = write()
    assert write() == first
    days = {day for _, _, day, _, _ in first}
    assert (min(days), max(days)) == (today - timedelta(days=365), today - timedelta(days=1))
    assert len(days) == 365
    runaway = f"user:{users[history.RUNAWAY].pk}"
    incident = {today - timedelta(days=ago) for ago in history.INCIDENT}
    refused = Counter(day for subject, _, day, _, refused in first for _ in range(refused) if subject == runaway)
    assert {day for day, _ in refused.most_common(len(incident))} == incident


def test_the_overrides_are_of_every_kind(database: object, redis_cache: object) -> None:
    from example_project import history

    history.write_overrides(history.write_people(new_accounts()))
    rows = QuotaOverride.objects.all()
    now = timezone.now()
    assert {row.mode for row in rows} == set(QuotaOverride.Mode)
    assert all(row.reason and row.created_by for row in rows)
    assert [row for row in rows if row.starts and row.starts > now]
    assert [row for row in rows if row.expires and row.expires < now]
    assert [row for row in rows if not row.expires]


@pytest.fixture(scope="module")
def fresh() -> Iterator[Serving]:
    """A site with WSGI that nobody has reset."""
    with serving("--wsgi") as site:
        yield site


def test_the_refusals_of_today_are_real(fresh: Serving) -> None:
    with Visitor(fresh.port) as visitor:
        sign_in_to_the_admin(visitor, fresh, "admin")
        page = text_of(visitor.get("/admin/django_quota/overview/").body)
    for subject in ("ip:198.51.100.140", "ip:192.0.2.66"):
        assert subject in page
    assert "banned" in page


def test_the_site_works_with_wsgi(fresh: Serving) -> None:
    with Visitor(fresh.port) as visitor:
        assert visitor.get("/").admitted
        download = scenario_of("download")
        assert [visitor.get(download.url).status for _ in range(download.sends)] == [200] * 5 + [429] * 2
        assert visitor.get("/static/example/style.css").admitted


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_manage_py_works_from_anywhere(scratch: Path) -> None:
    status, said = run(scratch, str(ROOT / "example_project" / "manage.py"), "check")
    assert status == 0, said
