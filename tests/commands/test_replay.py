"""`quota_replay` says what rules would have refused of the requests in an access log."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import operator
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_quota.conf import current
from django_quota.core.algorithms.distinct import Distinct
from django_quota.core.errors import ConfigurationError
from django_quota.core.rules import Rule
from django_quota.management import replaying
from django_quota.management.commands.quota_replay import rules_of_views
from django_quota.management.replaying import workers
from django_quota.services.access_log import UnreadableLineError, find_format, read_time
from django_quota.services.replay import MAX_TEXT, LineReader, RuleSet, Traffic, decide, read_rules, why_left_out
from django_quota.services.tightest import SHARES, Search, demands
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import clear, freeze
from django_quota.web.request_rules import claim_view_rules
from tests.support.inputs import inputs
from tests.support.pages import blocks, run_page
from tests.support.processes import forks
from tests.support.steps import SECOND, START, Spec

ROOT = Path(__file__).parents[2]

LINE = '{ip} - - [21/Nov/2025:04:{minute:02}:{second:02} +0000] "{method} {path} HTTP/1.1" {status} 12 "-" "{agent}"'


def line(second: int, ip: str = "203.0.113.9", path: str = "/api/plain/", **more: Any) -> str:
    """A line of a log, so many seconds after START."""
    given = {"method": "GET", "status": 200, "agent": "curl", **more}
    return LINE.format(ip=ip, path=path, minute=40 + second // 60, second=second % 60, **given)


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site with rules on views, whose Redis must not be asked. pytest-django forbids the database."""
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {"RULES": {"api": {"rate": "3/m", "match": "/api/plain/"}}}

    def asked(*_: Any) -> None:
        pytest.fail("Redis was asked")

    monkeypatch.setattr(RedisStore, "run", asked)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("quota_replay", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*words: str) -> dict[str, Any]:
    return json.loads(run(*words, "--json"))  # type: ignore[no-any-return]


def error_of(*words: str) -> str:
    with pytest.raises(CommandError) as caught:
        run(*words)
    return str(caught.value)


def log(lines: Sequence[str], name: str = "access.log") -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return name


# --- decisions --------------------------------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {"api": {"rate": "2/10s", "match": "/api/"}},
    {"api": {"rate": ["2/10s", "5/m"], "match": "/api/", "exclude": "/api/v1/"}, "all": {"rate": "9/m", "match": "/"}},
    {"pair": {"rate": "1/10s", "key": ["ip", "path"], "match": "/"}, "each": {"rate": "4/m", "match": "/"}},
    {"fixed": {"rate": "2/10s", "algorithm": "fixed_window", "key": "global", "match": "/", "shadow": True}},
    {"hour": {"rate": "4/m", "algorithm": "calendar", "tz": "Europe/Berlin", "match": "/", "methods": ["GET"]}},
    {"bucket": {"rate": "2/10s", "algorithm": "token_bucket", "burst": 3, "match": "/", "exempt": "198.51.100.0/24"}},
    {"leaky": {"rate": "3/10s", "algorithm": "leaky_bucket", "key": "header:User-Agent", "match": "/"}},
    {
        "strict": {"rate": "2/10s", "count_refused": True, "match": "/"},
        "soft": {"rate": "1/s", "block": False, "match": "/"},
    },
    {"banning": {"rate": "2/10s", "match": "/", "ban": {"after": "2/m", "for": ["30s", "1m"]}}},
    {
        "agents": {"rate": "1/10s", "distinct": "header:User-Agent", "match": "/"},
        "q": {"rate": "2/10s", "key": "get:q", "match": "/"},
    },
    {"costly": {"rate": "150/10s", "cost": 40, "match": "/"}},
]  # fmt: skip
"""Rules of every kind that a log can show."""

PATHS = (
    "/api/plain/",
    "/api/search/",
    "/api/v1/items/",
    "/class/",
    "/method/",
    "/guarded/",
    "/nowhere/",
    "/api/plain/?q=1",
)

Requests = list[tuple[int, str, str, str, str]]
"""For each request its time, method, address, path and user agent."""

requests = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 4 * SECOND), st.integers(0, 15 * SECOND)),  # until the next one
        st.sampled_from(["GET", "GET", "POST"]),
        st.sampled_from(["203.0.113.9", "203.0.113.9", "198.51.100.7", "2001:db8::1", "2001:db8::2"]),
        st.sampled_from(PATHS),
        st.sampled_from(["curl", "wget"]),
    ),
    min_size=5,
    max_size=25,
)


def timed(steps: Requests) -> Requests:
    now, found = START, []
    for wait, *rest in steps:
        now += wait
        found.append((now, *rest))
    return found  # type: ignore[return-value]


def as_lines(traffic: Requests) -> list[str]:
    return [
        json.dumps({"time": time, "remote_addr": ip, "method": method, "uri": path, "http_user_agent": agent})
        for time, method, ip, path, agent in traffic
    ]


def live(traffic: Requests) -> list[int]:
    """Send requests through the middleware, on the memory store; return the places of those that are refused."""
    clear()
    client, refused = Client(raise_request_exception=False), []
    for place, (time, method, ip, path, agent) in enumerate(traffic):
        with freeze(time):
            response = client.generic(method, path, REMOTE_ADDR=ip, HTTP_USER_AGENT=agent)
        if response.status_code == 429:
            refused.append(place)
    return refused


def read(lines: Sequence[str], rules: dict[str, Any] | None = None) -> tuple[RuleSet, Traffic]:
    """Read lines for the rules of the settings and of views; return the rules that are replayed, too."""
    log_format = find_format(lines)
    known = read_rules(current().rules, "RULES") if rules is None else read_rules(rules, "RULES")
    sets = [RuleSet("rules", known, log_format.fields, (rules_of_views(), claim_view_rules))]
    traffic = Traffic(1)
    reader = LineReader(log_format, sets)
    half = len(lines) // 2
    for part in (lines[:half], lines[half:]):
        traffic.add(reader.read("".join(f"{each}\n" for each in part).encode()))
    traffic.sort()
    assert not traffic.unreadable, traffic.shown
    return sets[0], traffic


@given(st.sampled_from(RULES), requests)
@inputs(100)
def test_replay_refuses_what_the_middleware_refuses(rules: dict[str, Any], steps: Requests) -> None:
    sent = timed(steps)
    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}, ROOT_URLCONF="tests.support.urls_of_rules"):
        expected = [sent[place][0] for place in live(sent)]
        replayed, traffic = read(as_lines(sent))
        refusals = decide(replayed, traffic, 0, range(len(traffic.times)))
        assert [traffic.times[position] for position in refusals.positions] == expected


@given(st.sampled_from(RULES), requests, st.integers(2, 5))
@inputs(100)
def test_parts_come_to_what_all_requests_together_do(rules: dict[str, Any], steps: Requests, number: int) -> None:
    replayed, traffic = read(as_lines(timed(steps)), rules)
    whole = decide(replayed, traffic, 0, range(len(traffic.times)))
    positions = traffic.parts(0, number)
    parts = [decide(replayed, traffic, 0, part) for part in positions]
    assert sorted(position for part in parts for position in part.positions) == list(whole.positions)
    assert sum((part.by_rule for part in parts), Counter()) == whole.by_rule
    assert sum((part.bans for part in parts), Counter()) == whole.bans
    assert len({position for part in positions for position in part}) == sum(map(len, positions))


def test_requests_of_one_time_stay_in_their_order(folder: Path) -> None:
    """Also in a log that is sorted: a request that one rule refuses does not count for another."""
    Path("two.toml").write_text(
        '[one]\nrate = "1/m"\nmatch = "/one/"\n[all]\nrate = "2/m"\nkey = "global"\nmatch = "/"\n'
    )
    log(
        [line(9, path="/"), line(3, "192.0.2.1", "/one/"), line(3, "192.0.2.1", "/one/"), line(3), line(3, "192.0.2.9")]
    )
    found = run_json("access.log", "--rules", "two.toml", "--show-subjects")["sets"][0]["rules"]
    assert (found["one"]["refused"], found["all"]["refused"]) == (1, 2)


def test_subjects_that_share_no_plan_are_in_different_parts() -> None:
    rules = {"api": {"rate": "2/m", "match": "/"}, "agent": {"rate": "9/m", "key": "header:User-Agent", "match": "/"}}
    sent = [(START, "GET", f"203.0.113.{n}", "/", agent) for n, agent in enumerate(["a", "a", "b", "c", "b"])]
    _, traffic = read(as_lines(sent), rules)
    assert sorted(map(list, traffic.parts(0, 8))) == [[0, 1], [2, 4], [3]]
    assert sorted(map(len, traffic.parts(0, 2))) == [2, 3]


@given(
    st.sampled_from(["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"]),
    st.lists(st.tuples(st.integers(0, 8 * SECOND), st.sampled_from(["1.1.1.1", "2.2.2.2"])), min_size=1, max_size=40),
)
@inputs(100)
def test_the_tightest_count_fits_and_one_less_does_not(algorithm: str, steps: list[tuple[int, str]]) -> None:
    sent = timed([(wait, "GET", ip, "/", "curl") for wait, ip in steps])
    rules = {"api": {"rate": "5/10s", "algorithm": algorithm, "match": "/"}}
    demand = demands(*read(as_lines(sent), rules), 0)["api"]
    search = Search(demand, demand.limits[0])
    for share, least in zip(SHARES, search.find(search.refused), strict=True):
        assert least is not None
        assert refusals(f"{least}/10s", algorithm, sent) <= share * len(sent)
        if least > 1:
            assert refusals(f"{least - 1}/10s", algorithm, sent) > share * len(sent)


def refusals(rate: str, algorithm: str, sent: Requests) -> int:
    """Return how many requests a rule by address refuses, by the specification."""
    specs: dict[str, Spec] = {}
    refused = 0
    for time, _, ip, _, _ in sent:
        spec = specs.setdefault(ip, Spec(rate, algorithm))
        spec.now = time
        refused += not spec.run().allowed
    return refused


@given(requests, st.integers(1, 6))
@inputs(50)
def test_a_search_in_parts_counts_the_same(steps: Requests, count: int) -> None:
    traffic = read(as_lines(timed(steps)), {"api": {"rate": "5/10s", "match": "/", "precision": 2}})
    demand = demands(*traffic, 0)["api"]
    search = Search(demand, demand.limits[0])
    whole = search.refused(count, 1_000)
    assert sum(search.refused(count, 1_000, part, 3) for part in range(3)) == whole
    assert search.refused(count, 0) == min(whole, 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 8) | st.integers(0, 8 * SECOND), st.sampled_from("abcde")), min_size=1, max_size=40
    ),
    st.integers(1, 4),
)
@inputs(50)
def test_a_search_of_different_values_refuses_what_the_rule_does(steps: list[tuple[int, str]], count: int) -> None:
    sent = timed([(wait, "GET", "203.0.113.9", "/", agent) for wait, agent in steps])
    rules = {"agents": {"rate": f"{count}/10s", "distinct": "header:User-Agent", "match": "/"}}
    traffic = read(as_lines(sent), rules)
    demand = demands(*traffic, 0)["agents"]
    refused = decide(*traffic, 0, range(len(sent))).positions
    assert Search(demand, demand.limits[0]).refused(count, 1_000) == len(refused)


def test_a_client_with_very_many_values_is_searched_in_one_pass_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [(START + at, "GET", "203.0.113.9", "/", f"agent {at}") for at in range(3_000)]
    rules = {"agents": {"rate": "3/m", "distinct": "header:User-Agent", "match": "/"}}
    demand = demands(*read(as_lines(sent), rules), 0)["agents"]
    monkeypatch.setattr(Distinct, "consume", lambda *_: pytest.fail("the specification copies all values"))
    search = Search(demand, demand.limits[0])
    assert search.find(search.refused) == [3_000, 2_997, 2_970]


def test_a_burst_and_different_values_are_searched_too() -> None:
    sent = [(START + at * SECOND, "GET", "203.0.113.9", "/", f"agent {at}") for at in range(10)]
    rules = {
        "bucket": {"rate": "60/m", "algorithm": "token_bucket", "burst": 2, "match": "/"},
        "agents": {"rate": "3/m", "distinct": "header:User-Agent", "match": "/"},
    }
    found = demands(*read(as_lines(sent), rules), 0)
    least = {name: Search(each, each.limits[0]) for name, each in found.items()}
    assert least["bucket"].find(least["bucket"].refused)[0] == 54  # eight come back in nine seconds
    assert least["agents"].find(least["agents"].refused)[0] == 10


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_rules_of_the_settings_are_replayed(folder: Path) -> None:
    name = log([line(second) for second in range(5)] + [line(5, ip="198.51.100.7"), line(6, path="/nowhere/")])
    printed = run(name)
    assert "access.log: 7 requests in the format combined" in printed
    assert "the settings would have refused 2 requests (28.6%)." in printed
    assert re.search(r"refused +2 \(33.3%\)", printed)
    assert re.search(r"subjects refused +1 \(50.0%\)", printed)
    assert re.search(r"refuses nobody from +5/m", printed)
    assert "2 of 5 requests (40.0%)" in printed
    assert "upper bounds" in printed
    assert "203.0.113.9" not in printed
    assert "ip:203.0.113.9" in run(name, "--show-subjects")


def test_a_report_fits_eighty_columns(folder: Path) -> None:
    rules = {
        f"a-rule-with-a-long-name-{n}": {"rate": "10/s; 500/h; 5000/d", "match": "/", "key": ["ip", "path"]}
        for n in "ab"
    }
    Path("a-long-name-of-drafts.toml").write_text(
        "".join(
            f"[{name}]\nrate = {value['rate']!r}\nmatch = '/'\nkey = ['ip', 'path']\n" for name, value in rules.items()
        )
    )
    lines = [line(second, path="/a/very/long/path/" * 9) for second in range(50)] + ["?" * 200, "\x1b[31m"]
    printed = run(log(lines), "--rules", "a-long-name-of-drafts.toml", "--compare", "current")
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed


def test_drafts_are_compared_with_the_settings(folder: Path) -> None:
    Path("drafts.toml").write_text('[api]\nrate = "1/m"\nmatch = "/api/plain/"\n')
    found = run_json(log([line(second) for second in range(5)]), "--rules", "drafts.toml", "--compare", "current")
    assert [(each["title"], each["refused"]) for each in found["sets"]] == [("drafts.toml", 4), ("the settings", 2)]
    assert (found["newly_refused"], found["no_longer_refused"]) == (2, 0)
    assert found["sets"][0]["rules"]["api"]["tightest"] == {"nobody": ["5/m"], "0.1%": ["5/m"], "1%": ["5/m"]}


def test_a_draft_replaces_the_rule_that_a_view_names(folder: Path, settings: Any) -> None:
    from django.http import HttpResponse
    from django.urls import path

    from django_quota import quota

    settings.ROOT_URLCONF = (path("named/", quota(rule="named")(lambda request: HttpResponse())),)
    settings.QUOTA = {"RULES": {"named": "4/m"}}
    Path("drafts.toml").write_text('named = "2/m"\n')
    name = log([line(second, path="/named/") for second in range(5)])
    found = run_json(name, "--rules", "drafts.toml", "--compare", "current")
    assert [each["refused"] for each in found["sets"]] == [3, 1]


def test_a_rate_alone_answers_the_quick_question(folder: Path) -> None:
    lines = [line(second, ip=f"203.0.113.{second % 2}", path=f"/{second}") for second in range(6)]
    found = run_json(log(lines), "--rate", "2/m", "--key", "ip")
    (rules,) = found["sets"]
    assert list(rules["rules"]) == ["2/m by ip"]
    assert rules["refused"] == 2
    assert run_json(log(lines), "--rate", "2/m", "--key", "ip", "--key", "path")["sets"][0]["refused"] == 0
    assert run_json(log(lines), "--rate", "2/m", "--match", "/5")["sets"][0]["rules"]["2/m by ip"]["requests"] == 1


def test_one_rule_can_be_chosen(folder: Path, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"api": {"rate": "3/m", "match": "/"}, "other": {"rate": "1/m", "match": "/"}}}
    name = log([line(second) for second in range(5)])
    assert list(run_json(name, "--rule", "other")["sets"][0]["rules"]) == ["other"]
    assert "Did you mean 'other'?" in error_of(name, "--rule", "othr")


def test_bans_are_counted(folder: Path, settings: Any) -> None:
    ban = {"after": "2/m", "for": "10s"}
    settings.QUOTA = {"RULES": {"api": {"rate": "1/h", "match": "/", "ban": ban}}}
    figures = run_json(log([line(second) for second in range(30)]))["sets"][0]["rules"]["api"]
    assert figures["refused"] == 29
    assert figures["bans"] == 3


def test_packed_logs_several_files_and_stdin_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(second) for second in range(5)]
    Path("1.gz").write_bytes(gzip.compress("\n".join(lines[:2]).encode()))
    log(lines[2:4], "2.log")
    stdin = io.BufferedReader(io.BytesIO(lines[4].encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    found = run_json("2.log", "1.gz", "-")
    assert found["log"]["requests"] == 5
    assert found["sets"][0]["refused"] == 2
    assert "came out of order" in found["notes"][0]


def test_lines_are_whole_where_blocks_meet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "BLOCK", 50)
    name = log([line(second) for second in range(20)])
    assert run_json(name)["log"] | {"begins": 0, "ends": 0} == {
        "files": [name], "format": "combined", "lines": 20, "requests": 20, "begins": 0, "ends": 0, "answered_429": 0,
        "unreadable": 0, "first_unreadable": [],
    }  # fmt: skip


def test_lines_that_cannot_be_used_are_counted_and_shown(folder: Path) -> None:
    broken = ["nonsense", line(1, path="\\x16\\x03"), line(2).replace("GET /api/plain/ HTTP/1.1", "-"), line(3, ip="-")]
    found = run_json(log([line(0, status=429), *broken, ""]))["log"]
    assert (found["requests"], found["unreadable"], found["answered_429"]) == (1, 4, 1)
    reasons = [(each["number"], each["reason"]) for each in found["first_unreadable"]]
    assert reasons == [(2, "it is not in this format"), (3, "it has no request"), (4, "it has no request")]
    error = error_of(log(["nonsense"]), "--format", "combined")
    assert "No line of the log could be used" in error
    assert error.endswith("The first: line 1, it is not in this format: nonsense")
    assert error_of(log([]), "--format", "combined") == "The log is empty."


def test_rules_that_a_log_cannot_show_are_named(folder: Path, settings: Any) -> None:
    settings.QUOTA["RULES"]["by_user"] = {"rate": "1/m", "key": "user", "match": "/"}
    settings.QUOTA["RULES"]["unplaced"] = "1/m"
    left_out = run_json(log([line(0)]))["sets"][0]["left_out"]
    assert left_out["by_user"] == "key='user' needs the user"
    assert "has no match=" in left_out["unplaced"]
    assert left_out["by-method-decorator"] == "your view or your code decides it"
    assert "10/m by user: no rule could be replayed.\n" in run("access.log", "--rate", "10/m", "--key", "user")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key": "user_or_ip"}, "the user"),
        ({"key": ("ip", "session")}, "the session"),
        ({"key": "post:phone"}, "the body"),
        ({"key": "json:phone"}, "the body"),
        ({"key": "header:X-Api-Key"}, "the header X-Api-Key"),
        ({"key": "cookie:device"}, "the cookie device"),
        ({"key": "tests.commands.test_replay.line"}, "a function of the request"),
        ({"key": line}, "a function of the request (tests.commands.test_replay.line)"),
        ({"skip": line}, "skip= is a function of the request"),
        ({"cost": line}, "cost= is a function of the request"),
        ({"exempt": line}, "exempt= is a function of the request"),
        ({"exempt": "staff"}, "the user"),
        ({"settle": line}, "settle= is a function of the response"),
        ({"distinct": "header:X-Device"}, "the header X-Device"),
        ({"distinct": True}, "only your code knows the value"),
        ({"rate": {"anonymous": "1/m", "authenticated": "2/m"}}, "its rate depends on the user"),
        ({"match": "host:a.example"}, "match= needs the host"),
        ({"key": "header:user-agent"}, ""),
        ({"key": ("ip", "path", "kwarg:pk", "get:q", "global")}, ""),
        ({"exempt": "10.0.0.0/8"}, ""),
    ],
)  # fmt: skip
def test_what_a_rule_needs_is_said(options: dict[str, Any], reason: str) -> None:
    fields = find_format([line(0)]).fields
    found = why_left_out(Rule.from_setting("rule", {"rate": "1/m", **options}), fields)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_key_of_a_logged_header_and_cookie_is_replayed(folder: Path) -> None:
    text = '$remote_addr [$msec] "$request" $status "$http_x_api_key" "$cookie_device" "$host"'
    Path("drafts.toml").write_text(
        '[key]\nrate = "1/m"\nkey = "header:X-Api-Key"\nmatch = "/"\n'
        '[device]\nrate = "2/m"\nkey = "cookie:device"\nmatch = "host:a.example"\n'
    )
    lines = [f'203.0.113.{n} [1763700000.{n:03}] "GET /{n} HTTP/1.1" 200 "{n}" "d" "a.example"' for n in range(4)]
    found = run_json(log(lines), "--rules", "drafts.toml", "--format", text)["sets"][0]
    assert {name: each["refused"] for name, each in found["rules"].items() if each["requests"]} == {
        "key": 0,
        "device": 2,
    }


def test_the_client_is_found_behind_proxies(folder: Path, settings: Any) -> None:
    text = '$remote_addr [$msec] "$request" "$http_x_forwarded_for"'
    hops = ["203.0.113.1", "6.6.6.6, 203.0.113.1", "203.0.113.2", "-"]
    lines = [f'10.0.0.1 [1763700000.{n:03}] "GET / HTTP/1.1" "{hop}"' for n, hop in enumerate(hops)]
    worst = [log(lines), "--rate", "0/m", "--format", text, "--show-subjects", "--worst", "9"]

    def subjects() -> set[str]:
        return {each["subject"] for each in run_json(*worst)["sets"][0]["rules"]["0/m by ip"]["worst"]}

    assert subjects() == {"ip:10.0.0.1"}
    settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8"]}
    assert subjects() == {"ip:203.0.113.1", "ip:203.0.113.2", "ip:10.0.0.1"}
    assert "10.0.0.1 counts as a client" in run(*worst)
    settings.QUOTA = {"TRUSTED_PROXY_COUNT": 1}
    assert subjects() == {"ip:10.0.0.1"}
    worst.append("--server-log")
    assert subjects() == {"ip:203.0.113.1", "ip:203.0.113.2", "ip:10.0.0.1"}


def test_the_picture_shows_demand_above_the_limit(folder: Path) -> None:
    Path("drafts.toml").write_text('[api]\nrate = "1/m"\nmatch = "/api/plain/"\n')
    name = log([line(second) for second in range(5)])
    run(name, "--rules", "drafts.toml", "--compare", "current", "--picture", "demand.svg")
    drawn = ET.fromstring(Path("demand.svg").read_text())
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "1/m" in texts
    assert "3/m (the settings)" in texts
    assert any(text and "asked for in 1 minute: 5" in text for text in texts)
    assert "No such file" in error_of(name, "--picture", "nowhere/demand.svg")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere.log"], "'nowhere.log' is not a file."),
        (["access.log", "--rules", "nowhere.toml"], "--rules nowhere.toml: No such file"),
        (["access.log", "--rules", "broken.toml"], "is not TOML"),
        (["access.log", "--rules", "empty.toml"], "has no rule"),
        (["access.log", "--rules", "nameless.toml"], "Write a line such as [search] above them."),
        (["access.log", "--rules", "nested.toml"], "has a table RULES. Leave it out"),
        (["access.log", "--rules", "wrong.toml"], "wrong.toml['api']: '10/month' is not a rate"),
        (["access.log", "--rules", "unkeyed.toml"], "unkeyed.toml['api']: key='usr' is not a key. Did you mean"),
        (["access.log", "--compare", "curent"], "--compare curent: No such file"),
        (["access.log", "--key", "ip"], "--key is only for --rate"),
        (["access.log", "--rate", "10/m", "--rules", "wrong.toml"], "Leave --rules out"),
        (["access.log", "--rate", "10/mo"], "'mo' is not a unit"),
        (["access.log", "--format", "combind"], "Did you mean 'combined'?"),
        (["access.log", "--format", "$remote_addr $request"], "has no time"),
        (["access.log", "--format", "%h %{%Y}t %r"], "cannot be read"),
        (["access.log", "--field", "ip=addr"], "is only for JSON"),
        (["access.log", "--field", "adress=addr"], "'adress' is not a field"),
        (["access.log", "--field", "ip"], "names no field"),
        (["json.log", "--field", "ip=adr"], "no line has 'adr'. Did you mean 'addr'?"),
        (["access.log", "--processes", "0"], "use 1 to"),
        (["access.log", "--worst", "-1"], "Use 0 or more"),
        (["odd.log"], "The format of the log is unknown"),
        (["cut.gz"], "cannot be read to its end"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(words: list[str], error: str, folder: Path) -> None:
    log([line(0)])
    log(["nothing of a log"], "odd.log")
    log(['{"addr": "203.0.113.9", "time": 1763700000, "method": "GET", "path": "/"}'], "json.log")
    packed = gzip.compress(b"".join(f"{line(n % 60)}\n".encode() for n in range(99)))
    Path("cut.gz").write_bytes(packed[:-20])
    for name, text in {
        "broken": "[api", "empty": "", "wrong": 'api = "10/month"', "unkeyed": '[api]\nrate = "1/m"\nkey = "usr"',
        "nameless": 'rate = "1/m"\nmatch = "/"', "nested": '[RULES.api]\nrate = "1/m"',
    }.items():  # fmt: skip
        Path(f"{name}.toml").write_text(text)
    assert error in error_of(*words)


@forks
def test_several_processes_find_the_same(folder: Path) -> None:
    rules = {name: value for each in RULES[:3] for name, value in each.items()}
    sent = [(START + at * SECOND // 4, "GET", f"203.0.113.{at % 7}", PATHS[at % 3], "curl") for at in range(300)]
    log(as_lines(sent))
    Path("site_settings.py").write_text(
        "from tests.support.settings import *\nROOT_URLCONF = 'tests.support.urls_of_rules'\n"
        f"QUOTA = {{'RULES': {rules!r}}}\n"
    )
    code = (
        "import sys; from django.core.management import execute_from_command_line as run\n"
        "from django_quota.management import replaying; replaying.BLOCK = 2_000\nrun(sys.argv)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "quota_replay", "access.log", "--json", "--processes", "3"],
        env={"DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        check=True,
    ).stdout
    with override_settings(QUOTA={"RULES": rules}):
        alone = run_json("access.log", "--processes", "1")
    assert json.loads(found) == alone
    assert alone["sets"][0]["refused"] > 50


# --- formats ----------------------------------------------------------------------------------------------------------

MOMENT = START + 123_000
REQUEST = "GET /a%20b/?q=1 HTTP/1.1"
COMMON = f'203.0.113.9 - ann [21/Nov/2025:05:40:00 +0100] "{REQUEST}" 200 12'
CADDY = {
    "ts": MOMENT / SECOND, "status": 200,
    "request": {"client_ip": "203.0.113.9", "method": "GET", "uri": "/a%20b/?q=1", "host": "a.example",
                "headers": {"User-Agent": ["curl"]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("auto", COMMON),
        ("common", COMMON),
        ("auto", f'{COMMON} "-" "curl \\"x\\""'),
        ("auto", f'{COMMON} "-" "curl" "more" 12'),
        ("auto", f'a.example:443 {COMMON} "-" "curl"'),
        ("vhost_combined", f'a.example:443 {COMMON} "-" "curl"'),
        ("$remote_addr|$time_iso8601|$request|$status", f"203.0.113.9|2025-11-21T04:40:00+00:00|{REQUEST}|200"),
        ("${msec} $request_method $uri?$args $remote_addr $status", "1763700000.000 GET /a b/?q=1 203.0.113.9 200"),
        ('%h %{msec}t "%m %U%q" %>s', '203.0.113.9 1763700000000 "GET /a b/?q=1" 200'),
        ('%(h)s %(t)s "%(r)s" %(s)s "%({x}i)s"', f'203.0.113.9 [21/Nov/2025:04:40:00 +0000] "{REQUEST}" 200 "k"'),
        (
            '%(asctime)s %(client_addr)s "%(request_line)s" %(status_code)s',
            f'2025-11-21 04:40:00,000 203.0.113.9:4711 "{REQUEST}" 200 OK',
        ),
        ("json", json.dumps({**CADDY, "ts": START / SECOND})),
        ("auto", f'{{"time": "2025-11-21T04:40:00Z", "ip": "203.0.113.9", "request": "{REQUEST}", "status": 200}}'),
    ],
)  # fmt: skip
def test_a_format_is_read(given: str, text: str) -> None:
    entry = find_format([text], given).read(text)
    assert (entry.time, entry.method, entry.path, entry.query, entry.status) == (START, "GET", "/a b/", "q=1", 200)
    assert entry.meta["REMOTE_ADDR"] == "203.0.113.9"


def test_fields_of_nested_json_are_found_and_named() -> None:
    entry = find_format([json.dumps(CADDY)]).read(json.dumps(CADDY))
    assert entry.meta == {"HTTP_USER_AGENT": "curl", "HTTP_HOST": "a.example", "REMOTE_ADDR": "203.0.113.9"}
    text = '{"a": "x", "t": 1763700000, "m": "GET", "p": "/?q"}'
    named = find_format([text], "json", {"ip": "a", "time": "t", "method": "m", "path": "p"})
    assert named.read(text)[:4] == (START, "GET", "/", "q")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1763700000", START),
        ("1763700000.123", MOMENT),
        ("1763700000123", MOMENT),
        ("1763700000123000", MOMENT),
        ("1763700000123000000", MOMENT),
        ("2025-11-21T04:40:00.123Z", MOMENT),
        ("2025-11-21T05:40:00.123+01:00", MOMENT),
        ("2025-11-21 04:40:00,123", MOMENT),
        ("21/Nov/2025:05:40:00 +0100", START),
        ("20/Nov/2025:23:10:00 -0530", START),
    ],
)
def test_a_time_is_read_to_the_microsecond(text: str, moment: int) -> None:
    assert read_time(text) == moment


@pytest.mark.parametrize("text", ["", "today", "12", "40/Nov/2025:04:40:00 +0000", "21/Foo/2025:04:40:00 +0000", "x/y"])
def test_what_is_no_time_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableLineError):
        read_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"time": 1763700000}',
        '{"time": 1763700000, "method": "GET", "path": "-"}',
        '{"method": "GET", "path": "/"}',
    ],
)
def test_what_is_no_request_in_json_is_unreadable(text: str) -> None:
    log_format = find_format(['{"time": 1763700000, "method": "GET", "path": "/"}'])
    with pytest.raises(UnreadableLineError):
        log_format.read(text)


def test_json_without_a_needed_field_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no method"):
        find_format(['{"time": 1763700000, "path": "/"}'])


@given(st.text(max_size=80), st.sampled_from(["combined", "json", "$remote_addr [$time_local] $request $status"]))
@inputs(100)
def test_no_line_stops_the_reader(text: str, given: str) -> None:
    log_format = find_format(['{"time": 1763700000, "method": "GET", "path": "/"}'] if given == "json" else [], given)
    sets = [RuleSet("rules", {}, log_format.fields)]
    block = LineReader(log_format, sets).read(text.encode(errors="surrogatepass"))
    assert block.requests + block.unreadable <= block.lines


LOGGED = '$remote_addr [$msec] $http_host "$request" "$http_x_key"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('203.0.113.9 [1763700000.1] a.example "GET http://[x HTTP/1.1" "k"', "it has no path"),
        (f'203.0.113.9 [1763700000.1] a.example "GET /?{"&" * 2000}q=1 HTTP/1.1" "k"', "DATA_UPLOAD_MAX_NUMBER_FIELDS"),
        ('203.0.113.9 [9999-12-31T23:59:59Z] a.example "GET / HTTP/1.1" "k"', "its time is before 1970 or too late"),
        ('203.0.113.9 [1763700000.1] - "GET / HTTP/1.0" "k"', None),
        ('203.0.113.9 [1763700000.1] a.example "GET / HTTP/1.1" "\\xff\\xed\\xa0\\x80"', None),
    ],
)
def test_what_strangers_send_does_not_stop_a_replay(text: str, reason: str | None) -> None:
    log_format = find_format([], LOGGED)
    rules = {
        "query": {"rate": "5/m", "key": "get:q", "match": "/"},
        "header": {"rate": "5/m", "key": "header:X-Key", "match": "/"},
        "host": {"rate": "5/day", "algorithm": "calendar", "match": "host:*.example"},
    }
    sets = [RuleSet("rules", read_rules(rules, "rules"), log_format.fields)]
    traffic = LineReader(log_format, sets).read(text.encode())
    decide(sets[0], traffic, 0, range(len(traffic.times)))
    assert [(reason or "no reason") in each.reason for each in traffic.shown] == ([] if reason is None else [True])
    assert traffic.requests == (reason is None)


@pytest.mark.parametrize("path", [r"/\ud800", "/" + "x" * 5_000, ""])
def test_an_unreadable_line_is_kept_in_short(path: str) -> None:
    log_format = find_format(['{"time": 1763700000, "method": "GET", "path": "/"}'])
    block = LineReader(log_format, []).read(f'{{"time": 1, "method": "GET", "path": "{path}"}}'.encode())
    assert (block.requests, block.unreadable, len(block.shown)) == (0, 1, 1)
    assert len(block.shown[0].text) <= MAX_TEXT


def test_a_long_line_in_another_format_is_soon_left() -> None:
    text = LINE.format(ip="2001:db8::1", minute=40, second=0, method="GET", path="/", status=200, agent="a " * 4_000)
    assert find_format([text]) is find_format([line(0)])


@pytest.mark.parametrize(
    "text",
    [
        COMMON.replace("21/Nov/2025", "31/Dec/9999"),
        "203.0.113.9 - " + " [" * 40_000,
        "203.0.113.9 - - " + " " * 90_000,
        '203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "' + '" 1 ' * 20_000,
        "a:" * 45_000,
        f'{COMMON} "-" "{"x" * 100_000}"',
        json.dumps({"time": 1763700000, "method": "GET", "path": "/\ud800?"}),
        json.dumps({"time": "9999-12-31T23:59:59-05:00", "method": "GET", "path": "/"}),
        json.dumps({"time": "0001-01-01T00:00:00+05:00", "method": "GET", "path": "/"}),
        '{"a":' * 990 + "1" + "}" * 990,
    ],
    ids=lambda text: text[:20].strip(),
)
def test_a_hostile_line_is_unreadable(text: str) -> None:
    """Also one that is long: to read it takes no more than a look at each sign."""
    if text.startswith("{"):
        formats = [find_format(['{"time": 1763700000, "method": "GET", "path": "/"}'])]
    else:
        formats = [find_format([], name) for name in ("combined", "common", "vhost_combined")]
    for log_format in formats:
        block = LineReader(log_format, [RuleSet("rules", {}, log_format.fields)]).read(text.encode())
        assert (block.requests, block.unreadable) == (0, 1)


def test_a_line_without_a_host_meets_rules_of_hosts_like_a_host_that_is_not_allowed(
    folder: Path, settings: Any
) -> None:
    settings.QUOTA = {"RULES": {"api": {"rate": "1/m", "match": "host:api.example"}}}
    settings.ALLOWED_HOSTS = ["*"]
    found = run_json(log([f"{host} {line(0, path='/x/')}" for host in ("api.example:80", "-:80", "api.example:80")]))
    assert (found["log"]["format"], found["sets"][0]["rules"]["api"]["requests"]) == ("combined with a host", 3)


def test_a_status_that_is_no_number_is_none() -> None:
    assert find_format([], "common").read(COMMON.replace(" 200 ", " ²00 ")).status == 0


# --- processes --------------------------------------------------------------------------------------------------------


def test_the_picture_shows_odd_names_and_counts_no_request_that_is_a_window_old(folder: Path) -> None:
    Path("odd.toml").write_text('["<b>\\u0001\\u001b[31m"]\nrate = "1/m"\nmatch = "/"\n')
    run(log([line(0), line(60)]), "--rules", "odd.toml", "--picture", "demand.svg")
    texts = [element.text or "" for element in ET.parse("demand.svg").iter()]
    title = next(text for text in texts if "subject asked for" in text and "limit" not in text)
    assert title.startswith("<b>\\x01\\x1b[31m: the most that one subject")
    assert title.endswith(": 1")


@forks
def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(CommandError, match="A process was killed"), workers(2, signal.SIGKILL) as work:  # noqa: PT012
        assert list(work(_end_if_odd, [0, 2, 4])) == [0, 2, 4]
        list(work(_end_if_odd, range(10)))
    assert not multiprocessing.active_children()


def _end_if_odd(number: int, item: int) -> int:
    if item % 2:
        os.kill(os.getpid(), number)
    return item


@forks
def test_an_error_in_a_process_is_raised_and_what_it_left_is_not_mixed_up() -> None:
    with workers(2, 5) as work:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                list(work(operator.floordiv, [0, 1, 2, 3]))
            given_up = work(operator.floordiv, [1, 2])
            assert next(given_up) == 5
            assert list(work(operator.floordiv, [1, 2, 3, 4, 5])) == [5, 2, 1, 1, 1]


@forks
def test_processes_end_with_the_one_that_started_them() -> None:
    """SIGKILL: the parent cannot end them. SIGTERM: it ends them at once."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        code = (
            "import os, time; from django_quota.management.replaying import workers\n"
            "def pids(shared, item): return os.getpid()\n"
            "with workers(2, None) as work:\n"
            "    print(*work(pids, range(2)), flush=True)\n"
            "    time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as parent:
            assert parent.stdout
            assert parent.stdout.readline().strip()
            parent.send_signal(number)
            # The processes have this pipe, too: it ends when the last of them does.
            assert parent.stdout.read() == b""


def test_a_closed_stdin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert error_of("-").startswith("stdin is closed.")


def test_the_report_is_printed_before_the_picture_fails(folder: Path) -> None:
    out = io.StringIO()
    with pytest.raises(CommandError, match="No such file"):
        call_command("quota_replay", log([line(0)]), "--picture", "nowhere/x.svg", stdout=out)
    assert "would have refused" in out.getvalue()


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_command_prints(folder: Path, settings: Any) -> None:
    settings.ROOT_URLCONF = ()
    shown = blocks("docs/replay.md")
    settings.QUOTA = run_page("docs/replay.md")["QUOTA"]
    Path("drafts.toml").write_text(next(text for language, text in shown if language == "toml"))
    moments = [(at / 2, f"203.0.113.{at % 40}", "/search/") for at in range(900)]
    moments += [(at, "198.51.100.7", "/search/") for at in range(0, 600, 2)]
    moments += [(at, "198.51.100.8", "/") for at in range(100)]
    lines = [line(int(second), ip=ip, path=path) for second, ip, path in sorted(moments)]
    Path("access.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    log([json.dumps({"client": "203.0.113.9", "time": START, "method": "GET", "path": "/search/"})], "access.json")
    log(['203.0.113.9 [1763700000.123] "GET /search/ HTTP/2.0" 200 "-"'], "site.log")
    log(lines, "access.log.1")
    for language, text in shown:
        for words, printed in re.findall(r"^\$ manage\.py quota_replay (.*)\n((?:(?!\$).*\n)*)", text, re.MULTILINE):
            assert language == "console"
            found = run(*shlex.split(words))
            assert not printed or printed.strip() == found.strip(), found
