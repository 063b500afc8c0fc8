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
from example_project.scenarios import SCENARIOS, Scenario
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


@pytest.fixture(scope="module", params=["redis", "database"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def said(store: str) -> str:
    """What the demo printed, once it has ended without an error."""
    with scratch_folder() as folder, started(folder, EXAMPLE_STORE=store) as demo:
        said, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, said
    return said


class TestDemo:
    def test_it_says_whether_it_uses_redis(self, said: str, store: str) -> None:
        assert ("without Redis" in said) == (store == "database")

    def test_it_runs_every_scenario(self, said: str) -> None:
        assert [scenario.title for scenario in SCENARIOS if scenario.title not in said] == []

    def test_it_marks_nothing_as_wrong(self, said: str) -> None:
        assert "✗" not in said

    @pytest.mark.parametrize(
        "words",
        [
            pytest.param(r"all at once: 40 sent, 10 admitted, 30 refused\n    429, Retry-After: (60|5\d)\n", id="rate"),
            pytest.param(r"all at once: 14 sent, 10 admitted, 4 refused\n    429", id="fourteen at once"),
            pytest.param(r"all at once: 60 sent, 20 admitted, 10 declined, 30 refused\n    429", id="sixty at once"),
            pytest.param(r"until the ban: 7 sent, 5 declined, 2 refused\n    429, Retry-After: (600|59\d)\n", id="ban"),
            pytest.param(
                r"all at once: 5 sent, 3 admitted, 2 declined\n    409. Ann has 10, Bob has 90: 100 together",
                id="lock",
            ),
            pytest.param(
                r"a guest: 12 .*\n.*\n.*api.*\n.*signed in: 12 sent, 12 admitted\n.*a pro: 12 sent, 12 admitted\n",
                id="tiers",
            ),
            pytest.param(
                r'one after another: 8 .*\n.*\n +RateLimit: "api";r=6;t=\d+, "api-export";r=2;t=\d+, '
                r'"export-burst";r=0;',
                id="several limits",
            ),
        ],
    )
    def test_a_scenario_is_as_promised(self, said: str, words: str) -> None:
        assert re.search(words, said)

    @pytest.mark.parametrize("page", ["the overview", "a user's limits", "a user's year", "overrides"])
    def test_it_opens_a_page_of_the_admin(self, said: str, page: str) -> None:
        assert re.search(rf"✓ {page} +200 in \d+ ms", said)


def test_the_demo_says_that_redis_does_not_answer() -> None:
    with scratch_folder() as folder, started(folder, REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as demo:
        said, _ = demo.communicate(timeout=PATIENCE)

    assert "Redis does not answer" in said
    assert demo.returncode == 1


def test_ctrl_c_stops_everything_that_the_demo_started() -> None:
    with scratch_folder() as folder, started(folder) as demo:
        assert demo.stdout
        assert "is a real server" in demo.stdout.readline()

        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE)

    assert "Stopped" in said
    assert demo.returncode == 130


def linked_on_the_front_page(visitor: Visitor) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]*)"', visitor.get("/").body)


def test_the_front_page_links_no_file_of_another_site(visitor: Visitor) -> None:
    linked = linked_on_the_front_page(visitor)

    assert linked
    assert [link for link in linked if not link.startswith(("/", "data:", "#"))] == []


def test_a_file_of_the_front_page_links_no_file_of_another_site(visitor: Visitor) -> None:
    assets = [link for link in linked_on_the_front_page(visitor) if link.startswith("/static/")]

    replies = {asset: visitor.get(asset) for asset in assets}

    assert [asset for asset, reply in replies.items() if not reply.admitted] == []
    links = r'(?m)(^|\s)//.*$|xmlns="[^"]*"'  # that nobody follows: comments and names
    assert [asset for asset, reply in replies.items() if "//" in re.sub(links, "", reply.body)] == []


@pytest.mark.parametrize("url", ["/", "/admin/login/", "/api/status/"])
def test_a_page_has_a_strict_content_security_policy(visitor: Visitor, url: str) -> None:
    assert visitor.get(url).headers["Content-Security-Policy"] == "default-src 'self'; img-src 'self' data:"


def test_the_policy_of_a_refusal_permits_only_its_own_style(visitor: Visitor) -> None:
    visitor.get("/refused/", {"Accept": "text/html"})

    refused = visitor.get("/refused/", {"Accept": "text/html"})

    nonce = re.search(r'<style nonce="([^"]+)">', refused.body)
    assert nonce is None or f"'nonce-{nonce[1]}'" in refused.headers["Content-Security-Policy"]


CHANGING = pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if each.method == "POST"], ids=lambda scenario: scenario.slug
)
"""The scenarios that change something."""


@CHANGING
def test_a_scenario_that_changes_something_refuses_a_get(visitor: Visitor, scenario: Scenario) -> None:
    assert visitor.get(scenario.url).status == 405


@CHANGING
def test_a_scenario_that_changes_something_refuses_a_post_of_another_site(visitor: Visitor, scenario: Scenario) -> None:
    given = {scenario.given.name: scenario.given.value} if scenario.given else {}

    refused = visitor.post(scenario.url, given)  # no page was opened, so there is no CSRF token

    assert (refused.status, "CSRF" in refused.body) == (403, True)


@pytest.mark.parametrize("who", ["admin", "clerk", "intern", "ines", "nobody"])
def test_nobody_of_staff_signs_in_without_a_password(visitor: Visitor, who: str) -> None:
    visitor.get("/")

    assert visitor.post("/sign-in/", {"who": who}).status == 404


@pytest.mark.parametrize(("who", "status"), [("admin", 200), ("clerk", 200), ("intern", 403)])
def test_staff_see_the_limits_if_they_have_the_permission(
    visitor: Visitor, served: Site, who: str, status: int
) -> None:
    visitor.get("/admin/login/")
    fields = {"username": who, "password": served.passwords[who], "next": "/admin/"}
    assert visitor.post("/admin/login/?next=/admin/", fields).status == 302

    pages = ("subject/", "overview/", "quotaoverride/", "dailycounter/", "dailycounter/usage/")
    answers = {page: visitor.get(f"/admin/django_quota/{page}").status for page in pages}

    assert answers == dict.fromkeys(pages, status)


def test_each_of_staff_has_a_printed_password_of_their_own(served: Site) -> None:
    assert set(served.passwords) == {"admin", "clerk", "intern"}
    assert len(set(served.passwords.values())) == 3


def test_passwords_are_stored_nowhere(served: Site) -> None:
    files = [file for file in served.folder.rglob("*") if file.is_file()]

    assert any(file.suffix == ".sqlite3" for file in files)
    words = [password.encode() for password in served.passwords.values()]
    assert [file for file in files if any(word in file.read_bytes() for word in words)] == []


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
