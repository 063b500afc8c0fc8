"""The example site with real processes, a real Redis and real HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from email.message import Message
from pathlib import Path

import pytest
from django.utils import timezone

from django_quota.models import DailyCounter
from example_project.client import Reply, Visitor
from example_project.people import new_accounts
from example_project.scenarios import SCENARIOS, Scenario
from example_project.serve import main as serve
from example_project.steps import Step, promised_by_bucket
from tests.e2e.sites import PATIENCE, Site, run_site, scratch_folder

pytestmark = pytest.mark.thorough("example")

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    with run_site() as running:
        yield running


@pytest.fixture
def port(served: Site) -> int:
    return served.port


@pytest.fixture
def visitor(port: int) -> Iterator[Visitor]:
    with Visitor(port) as someone:
        yield someone


# --- make demo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["redis", "database"])
def test_the_demo_runs_every_scenario_and_all_are_as_promised(scratch: Path, store: str) -> None:
    status, said = run(scratch, "-m", "example_project.demo", EXAMPLE_STORE=store)
    assert status == 0, said
    assert ("without Redis" in said) == (store == "database")
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


def test_the_demo_says_that_the_redis_of_redis_url_is_down(scratch: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        status, said = run(scratch, "-m", "example_project.demo", REDIS_URL=url)
    assert status == 1
    assert "Redis does not answer" in said


def test_the_demo_ends_with_one_line_for_a_store_that_there_is_not(scratch: Path) -> None:
    status, said = run(scratch, "-m", "example_project.demo", EXAMPLE_STORE="typo")
    assert (status, said.splitlines()) == (
        1,
        ["The demo could not start. STORE=typo is no store of the example site. Use STORE=redis or STORE=database."],
    )


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


# --- make serve -------------------------------------------------------------------------------------------------------


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


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(["--port", str(port)]) == 1
    assert f"Port {port} cannot be used: it is taken" in capsys.readouterr().err
    assert serve(["--port", "99999"]) == 1


# --- the API and its rules --------------------------------------------------------------------------------------------


# --- the admin, and the past that it shows ----------------------------------------------------------------------------


def sign_in_to_the_admin(visitor: Visitor, served: Site, who: str) -> None:
    visitor.get("/admin/login/")
    fields = {"username": who, "password": served.passwords[who], "next": "/admin/"}
    assert visitor.post("/admin/login/?next=/admin/", fields).status == 302


def test_nobody_signs_in_as_staff_without_a_password(visitor: Visitor) -> None:
    visitor.get("/")
    for who in ("admin", "clerk", "ines", "nobody"):
        assert visitor.post("/sign-in/", {"who": who}).status == 404


@pytest.mark.parametrize(("who", "status"), [("admin", 200), ("clerk", 200), ("intern", 403)])
def test_who_may_see_the_limits_in_the_admin(served: Site, who: str, status: int) -> None:
    with Visitor(served.port) as visitor:
        sign_in_to_the_admin(visitor, served, who)
        for page in ("subject/", "overview/", "quotaoverride/", "dailycounter/", "dailycounter/usage/"):
            assert visitor.get(f"/admin/django_quota/{page}").status == status


def test_passwords_are_printed_and_stored_nowhere(served: Site) -> None:
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


@pytest.fixture(scope="module")
def fresh() -> Iterator[Site]:
    """A site with WSGI that nobody has reset."""
    with run_site("--wsgi") as site:
        yield site


def test_the_site_works_with_wsgi(fresh: Site) -> None:
    with Visitor(fresh.port) as visitor:
        assert visitor.get("/").admitted
        download = scenario_of("download")
        assert [visitor.get(download.url).status for _ in range(download.sends)] == [200] * 5 + [429] * 2
        assert visitor.get("/static/example/style.css").admitted


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_manage_py_works_from_anywhere(scratch: Path) -> None:
    status, said = run(scratch, str(ROOT / "example_project" / "manage.py"), "check")
    assert status == 0, said
