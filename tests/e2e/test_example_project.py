"""The example site with real processes, a real Redis and real HTTP."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.client import Visitor
from example_project.scenarios import SCENARIOS
from tests.e2e.sites import PATIENCE, ROOT, Site, run_site, scratch_folder
from tests.support.ports import free_port

pytestmark = pytest.mark.thorough("example")


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "120", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    with run_site() as running:
        yield running


@pytest.fixture
def visitor(served: Site) -> Iterator[Visitor]:
    with Visitor(served.port) as someone:
        yield someone


@pytest.mark.parametrize("store", ["redis", "database"])
def test_the_demo_runs_every_scenario_and_all_are_as_promised(store: str) -> None:
    with scratch_folder() as folder, started(folder, EXAMPLE_STORE=store) as demo:
        said, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, said
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
        *(rf"✓ {page} +200 in \d+ ms" for page in ("the overview", "a user's limits", "a user's year", "overrides")),
    ):
        assert re.search(words, said), words


def test_ctrl_c_stops_everything_that_the_demo_started_and_a_redis_that_is_down_is_named() -> None:
    with scratch_folder() as folder:
        with started(folder, REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as demo:
            assert "Redis does not answer" in demo.communicate(timeout=PATIENCE)[0]
        assert demo.returncode == 1
        with started(folder) as demo:
            assert demo.stdout
            assert "is a real server" in demo.stdout.readline()
            demo.send_signal(signal.SIGINT)
            demo.send_signal(signal.SIGINT)
            assert "Stopped" in demo.communicate(timeout=PATIENCE)[0]
        assert demo.returncode == 130


def test_pages_have_a_strict_content_security_policy_and_load_no_external_files(visitor: Visitor) -> None:
    page = visitor.get("/").body
    linked = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(link.startswith(("/", "data:", "#")) for link in linked)
    for asset in (link for link in linked if link.startswith("/static/")):
        reply = visitor.get(asset)
        assert reply.admitted
        assert "//" not in re.sub(r'(?m)(^|\s)//.*$|xmlns="[^"]*"', "", reply.body)
    for url in ("/", "/admin/login/", "/api/status/"):
        assert visitor.get(url).headers["Content-Security-Policy"] == "default-src 'self'; img-src 'self' data:"
    visitor.get("/refused/", {"Accept": "text/html"})
    refused = visitor.get("/refused/", {"Accept": "text/html"})
    nonce = re.search(r'<style nonce="([^"]+)">', refused.body)
    assert nonce is None or f"'nonce-{nonce[1]}'" in refused.headers["Content-Security-Policy"]


def test_a_scenario_that_changes_something_takes_a_post_of_its_own_pages(visitor: Visitor) -> None:
    for scenario in (each for each in SCENARIOS if each.method == "POST"):
        given = {scenario.given.name: scenario.given.value} if scenario.given else {}
        assert visitor.get(scenario.url).status == 405
        refused = visitor.post(scenario.url, given)  # no page was opened, so there is no CSRF token
        assert (refused.status, "CSRF" in refused.body) == (403, True)


@pytest.mark.parametrize(("who", "status"), [("admin", 200), ("clerk", 200), ("intern", 403)])
def test_staff_sees_the_limits_by_permission_and_signs_in_by_password_alone(
    visitor: Visitor, served: Site, who: str, status: int
) -> None:
    visitor.get("/")
    assert {visitor.post("/sign-in/", {"who": name}).status for name in (who, "ines", "nobody")} == {404}
    visitor.get("/admin/login/")
    fields = {"username": who, "password": served.passwords[who], "next": "/admin/"}
    assert visitor.post("/admin/login/?next=/admin/", fields).status == 302
    for page in ("subject/", "overview/", "quotaoverride/", "dailycounter/", "dailycounter/usage/"):
        assert visitor.get(f"/admin/django_quota/{page}").status == status


def test_passwords_are_printed_and_stored_nowhere(served: Site) -> None:
    assert set(served.passwords) == {"admin", "clerk", "intern"}
    assert len(set(served.passwords.values())) == 3
    files = [file for file in served.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".sqlite3" for file in files)
    for file in files:
        assert not [word for word in served.passwords.values() if word.encode() in file.read_bytes()]


def test_the_site_works_with_wsgi() -> None:
    download = next(scenario for scenario in SCENARIOS if scenario.slug == "download")
    with run_site("--wsgi") as site, Visitor(site.port) as visitor:
        assert visitor.get("/").admitted
        assert [visitor.get(download.url).status for _ in range(download.sends)] == [200] * 5 + [429] * 2
        assert visitor.get("/static/example/style.css").admitted


def test_a_command_runs_beside_the_site(served: Site) -> None:
    (command,) = re.findall(r"^Commands beside it: (.*)$", served.said, re.MULTILINE)

    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )

    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "ip:127.0.0.1")
