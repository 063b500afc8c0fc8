"""`quota_replay` says what rules would have refused of the requests in an access log."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_quota.conf import current
from django_quota.core.errors import ConfigurationError
from django_quota.core.rules import Rule
from django_quota.management.commands.quota_replay import rules_of_views
from django_quota.operating.access_log import find_format, read_time
from django_quota.operating.replay import MAX_TEXT, RuleSet, Traffic, decide, read_rules, read_traffic, why_left_out
from django_quota.operating.tightest import demands, tightest
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import clear, freeze
from django_quota.web.request_rules import rules_of_view
from tests.support.inputs import inputs
from tests.support.pages import blocks
from tests.support.steps import SECOND, START, Spec

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
    replayed = RuleSet(known, log_format.fields, (rules_of_views(), rules_of_view))
    traffic = read_traffic(lines, log_format, replayed)
    assert not traffic.unreadable, traffic.shown
    return replayed, traffic


@given(st.sampled_from(RULES), requests)
@inputs(100)
def test_replay_refuses_what_the_middleware_refuses(rules: dict[str, Any], steps: Requests) -> None:
    sent = timed(steps)
    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}, ROOT_URLCONF="tests.support.urls_of_rules"):
        expected = [sent[place][0] for place in live(sent)]
        replayed, traffic = read(as_lines(sent))
        refusals = decide(replayed, traffic)
        assert [traffic.times[position] for position in refusals.positions] == expected


def test_requests_of_one_time_stay_in_their_order(folder: Path) -> None:
    """Also in a log that is sorted: a request that one rule refuses does not count for another."""
    Path("two.toml").write_text(
        '[one]\nrate = "1/m"\nmatch = "/one/"\n[all]\nrate = "2/m"\nkey = "global"\nmatch = "/"\n'
    )
    log(
        [line(9, path="/"), line(3, "192.0.2.1", "/one/"), line(3, "192.0.2.1", "/one/"), line(3), line(3, "192.0.2.9")]
    )
    found = run_json("access.log", "--rules", "two.toml", "--show-subjects")["rules"]
    assert (found["one"]["refused"], found["all"]["refused"]) == (1, 2)


@given(
    st.sampled_from(["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"]),
    st.lists(st.tuples(st.integers(0, 8 * SECOND), st.sampled_from(["1.1.1.1", "2.2.2.2"])), min_size=1, max_size=40),
)
@inputs(100)
def test_the_tightest_count_fits_and_one_less_does_not(algorithm: str, steps: list[tuple[int, str]]) -> None:
    sent = timed([(wait, "GET", ip, "/", "curl") for wait, ip in steps])
    rules = {"api": {"rate": "5/10s", "algorithm": algorithm, "match": "/"}}
    demand = demands(*read(as_lines(sent), rules))["api"]
    least = tightest(demand, demand.limits[0])
    assert least is not None
    assert not refusals(f"{least}/10s", algorithm, sent)
    assert least == 1 or refusals(f"{least - 1}/10s", algorithm, sent)


def refusals(rate: str, algorithm: str, sent: Requests) -> int:
    """Return how many requests a rule by address refuses, by the specification."""
    specs: dict[str, Spec] = {}
    refused = 0
    for time, _, ip, _, _ in sent:
        spec = specs.setdefault(ip, Spec(rate, algorithm))
        spec.now = time
        refused += not spec.run().allowed
    return refused


@given(
    st.lists(
        st.tuples(st.integers(0, 8) | st.integers(0, 8 * SECOND), st.sampled_from("abcde")), min_size=1, max_size=40
    )
)
@inputs(50)
def test_the_tightest_count_of_different_values_is_what_the_rule_needs(steps: list[tuple[int, str]]) -> None:
    sent = timed([(wait, "GET", "203.0.113.9", "/", agent) for wait, agent in steps])

    def refused(count: int) -> int:
        rules = {"agents": {"rate": f"{count}/10s", "distinct": "header:User-Agent", "match": "/"}}
        return len(decide(*read(as_lines(sent), rules)).positions)

    rules = {"agents": {"rate": "9/10s", "distinct": "header:User-Agent", "match": "/"}}
    demand = demands(*read(as_lines(sent), rules))["agents"]
    least = tightest(demand, demand.limits[0])
    assert least is not None
    assert not refused(least)
    assert least == 1 or refused(least - 1)


def test_the_tightest_count_knows_that_a_hit_of_a_coarse_window_counts_longer() -> None:
    sent = timed([(3 * SECOND // 2, "GET", "203.0.113.9", "/", "curl")] * 30)  # seven in any ten seconds

    def replayed(count: int) -> tuple[RuleSet, Traffic]:
        return read(as_lines(sent), {"api": {"rate": f"{count}/10s", "precision": 2, "match": "/"}})

    demand = demands(*replayed(5))["api"]
    assert tightest(demand, demand.limits[0]) == 10
    assert [len(decide(*replayed(count)).positions) for count in (9, 10)] == [2, 0]


def test_the_tightest_rate_of_a_bucket_keeps_its_burst() -> None:
    sent = [(START + at * SECOND, "GET", "203.0.113.9", "/", "curl") for at in range(10)]
    rules = {"bucket": {"rate": "60/m", "algorithm": "token_bucket", "burst": 2, "match": "/"}}
    demand = demands(*read(as_lines(sent), rules))["bucket"]
    assert tightest(demand, demand.limits[0]) == 54  # eight come back in nine seconds
    demand = demands(*read(as_lines([sent[0]] * 3), rules))["bucket"]
    assert tightest(demand, demand.limits[0]) is None  # three at once never fit into the bucket


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_rules_of_the_settings_are_replayed(folder: Path) -> None:
    name = log([line(second) for second in range(5)] + [line(5, ip="198.51.100.7"), line(6, path="/nowhere/")])
    printed = run(name)
    assert "access.log: 7 requests in the format combined" in printed
    assert "the settings would have refused 2 requests (28.6%)." in printed
    assert re.search(r"refused +2 \(33.3%\)", printed)
    assert re.search(r"subjects refused +1 \(50.0%\)", printed)
    assert re.search(r"no refusals from +5/m", printed)
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
    printed = run(log(lines), "--rules", "a-long-name-of-drafts.toml")
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed


def test_a_draft_replaces_the_rule_that_a_view_names(folder: Path, settings: Any) -> None:
    from django.http import HttpResponse
    from django.urls import path

    from django_quota import quota

    settings.ROOT_URLCONF = (path("named/", quota(rule="named")(lambda request: HttpResponse())),)
    settings.QUOTA = {"RULES": {"named": "4/m"}}
    Path("drafts.toml").write_text('named = "2/m"\n')
    name = log([line(second, path="/named/") for second in range(5)])
    assert run_json(name, "--rules", "drafts.toml")["refused"] == 3
    assert run_json(name)["refused"] == 1


def test_a_rate_alone_answers_the_quick_question(folder: Path) -> None:
    lines = [line(second, ip=f"203.0.113.{second % 2}", path=f"/{second}") for second in range(6)]
    found = run_json(log(lines), "--rate", "2/m", "--key", "ip")
    assert list(found["rules"]) == ["2/m by ip"]
    assert found["refused"] == 2
    assert run_json(log(lines), "--rate", "2/m", "--key", "ip", "--key", "path")["refused"] == 0
    assert run_json(log(lines), "--rate", "2/m", "--match", "/5")["rules"]["2/m by ip"]["requests"] == 1


def test_one_rule_can_be_chosen(folder: Path, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"api": {"rate": "3/m", "match": "/"}, "other": {"rate": "1/m", "match": "/"}}}
    name = log([line(second) for second in range(5)])
    assert list(run_json(name, "--rule", "other")["rules"]) == ["other"]
    assert "Did you mean 'other'?" in error_of(name, "--rule", "othr")


def test_bans_are_counted(folder: Path, settings: Any) -> None:
    ban = {"after": "2/m", "for": "10s"}
    settings.QUOTA = {"RULES": {"api": {"rate": "1/h", "match": "/", "ban": ban}}}
    figures = run_json(log([line(second) for second in range(30)]))["rules"]["api"]
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
    assert found["refused"] == 2
    assert "came out of order" in found["notes"][0]


def test_lines_that_cannot_be_used_are_counted_and_shown(folder: Path) -> None:
    broken = ["nonsense", line(1, path="\\x16\\x03"), line(2).replace("GET /api/plain/ HTTP/1.1", "-"), line(3, ip="-")]
    found = run_json(log([line(0, status=429), *broken, ""]))["log"]
    assert (found["requests"], found["unreadable"], found["answered_429"]) == (1, 4, 1)
    reasons = [(each["number"], each["reason"]) for each in found["first_unreadable"]]
    assert reasons == [(2, "it is not in this format"), (3, "it has no request"), (4, "it has no request")]
    error = error_of(log([line(0, method="get"), "nonsense"]))
    assert "No line of the log could be used" in error
    assert "The first: line 1, it has no request: 203.0.113.9 - - [21/Nov/2025" in error
    assert error_of(log([])) == "The log is empty."
    error = error_of(log(["\x1b[2J\x07\u202egnp", line(0, method="get")]))
    assert error.endswith(r"The first: line 1, it is not in this format: \x1b[2J\x07\u202egnp")


def test_rules_that_a_log_cannot_show_are_named(folder: Path, settings: Any) -> None:
    settings.QUOTA["RULES"]["by_user"] = {"rate": "1/m", "key": "user", "match": "/"}
    settings.QUOTA["RULES"]["unplaced"] = "1/m"
    left_out = run_json(log([line(0)]))["left_out"]
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
    Path("drafts.toml").write_text(
        '[key]\nrate = "1/m"\nkey = "header:X-Api-Key"\nmatch = "/"\n'
        '[device]\nrate = "2/m"\nkey = "cookie:device"\nmatch = "host:a.example"\n'
    )
    logged = {"remote_addr": "203.0.113.9", "cookie_device": "d", "host": "a.example", "status": 200}
    lines = [
        json.dumps(logged | {"msec": 1763700000 + n, "request": f"GET /{n} HTTP/1.1", "http_x_api_key": str(n)})
        for n in range(4)
    ]
    found = run_json(log(lines), "--rules", "drafts.toml")
    assert {name: each["refused"] for name, each in found["rules"].items() if each["requests"]} == {
        "key": 0,
        "device": 2,
    }


def test_the_client_is_found_behind_proxies(folder: Path, settings: Any) -> None:
    hops = ["203.0.113.1", "6.6.6.6, 203.0.113.1", "203.0.113.2", None]
    lines = [
        json.dumps({"ip": "10.0.0.1", "time": START + n, "request": "GET / HTTP/1.1", "http_x_forwarded_for": hop})
        for n, hop in enumerate(hops)
    ]
    worst = [log(lines), "--rate", "0/m", "--show-subjects", "--worst", "9"]

    def subjects() -> set[str]:
        return {each["subject"] for each in run_json(*worst)["rules"]["0/m by ip"]["worst"]}

    assert subjects() == {"ip:10.0.0.1"}
    settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8"]}
    assert subjects() == {"ip:203.0.113.1", "ip:203.0.113.2", "ip:10.0.0.1"}
    assert "10.0.0.1 counts as a client" in run(*worst)
    settings.QUOTA = {"TRUSTED_PROXY_COUNT": 1}
    assert subjects() == {"ip:10.0.0.1"}
    worst.append("--server-log")
    assert subjects() == {"ip:203.0.113.1", "ip:203.0.113.2", "ip:10.0.0.1"}


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
        (["access.log", "--key", "ip"], "--key is only for --rate"),
        (["access.log", "--rate", "10/m", "--rules", "wrong.toml"], "Leave --rules out"),
        (["access.log", "--rate", "10/mo"], "'mo' is not a unit"),
        (["access.log", "--worst", "-1"], "Use 0 or more"),
        (["odd.log"], "The format of the log is unknown"),
        (["cut.gz"], "cannot be read to its end"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(words: list[str], error: str, folder: Path) -> None:
    log([line(0)])
    log(["nothing of a log"], "odd.log")
    packed = gzip.compress(b"".join(f"{line(n % 60)}\n".encode() for n in range(99)))
    Path("cut.gz").write_bytes(packed[:-20])
    for name, text in {
        "broken": "[api", "empty": "", "wrong": 'api = "10/month"', "unkeyed": '[api]\nrate = "1/m"\nkey = "usr"',
        "nameless": 'rate = "1/m"\nmatch = "/"', "nested": '[RULES.api]\nrate = "1/m"',
    }.items():  # fmt: skip
        Path(f"{name}.toml").write_text(text)
    assert error in error_of(*words)


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
    "text",
    [
        COMMON,
        f'{COMMON} "-" "curl \\"x\\""',
        f'{COMMON} "-" "curl" "more" 12',
        json.dumps({**CADDY, "ts": START / SECOND}),
        f'{{"time": "2025-11-21T04:40:00Z", "ip": "203.0.113.9", "request": "{REQUEST}", "status": 200}}',
    ],
)
def test_a_format_is_read(text: str) -> None:
    entry = find_format([text]).read(text)
    assert (entry.time, entry.method, entry.path, entry.query, entry.status) == (START, "GET", "/a b/", "q=1", 200)
    assert entry.meta["REMOTE_ADDR"] == "203.0.113.9"


def test_a_format_has_the_fields_of_its_lines() -> None:
    assert "header:user-agent" not in find_format([COMMON]).fields
    assert "header:user-agent" in find_format([f'{COMMON} "-" "curl"']).fields
    entry = find_format([json.dumps(CADDY)]).read(json.dumps(CADDY))
    assert entry.meta == {"HTTP_USER_AGENT": "curl", "HTTP_HOST": "a.example", "REMOTE_ADDR": "203.0.113.9"}
    assert find_format([COMMON]).read(COMMON.replace(" 200 ", " ²00 ")).status == 0
    with pytest.raises(ConfigurationError, match="has no method"):
        find_format(['{"time": 1763700000, "path": "/"}'])


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


JSON = '{"time": 1763700000, "method": "GET", "path": "/"}'


@given(st.text(max_size=80), st.sampled_from([line(0), JSON]))
@inputs(100)
def test_no_line_stops_the_reader(text: str, first: str) -> None:
    log_format = find_format([first])
    traffic = read_traffic([text], log_format, RuleSet({}, log_format.fields))
    assert traffic.requests + traffic.unreadable <= traffic.lines


LOGGED = {
    "ip": "203.0.113.9",
    "time": "1763700000.1",
    "host": "a.example",
    "request": "GET / HTTP/1.1",
    "http_x_key": "k",
}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"request": "GET http://[x HTTP/1.1"}, "it has no path"),
        ({"request": f"GET /?{'&' * 2000}q=1 HTTP/1.1"}, "DATA_UPLOAD_MAX_NUMBER_FIELDS"),
        ({"time": "9999-12-31T23:59:59Z"}, "its time is before 1970 or too late"),
        ({"host": None}, None),
        ({"http_x_key": "\udcff\ud800"}, None),
    ],
)
def test_what_strangers_send_does_not_stop_a_replay(given: dict[str, Any], reason: str | None) -> None:
    log_format = find_format([json.dumps(LOGGED)])
    rules = {
        "query": {"rate": "5/m", "key": "get:q", "match": "/"},
        "header": {"rate": "5/m", "key": "header:X-Key", "match": "/"},
        "host": {"rate": "5/day", "algorithm": "calendar", "match": "host:*.example"},
    }
    replayed = RuleSet(read_rules(rules, "rules"), log_format.fields)
    traffic = read_traffic([json.dumps(LOGGED | given)], log_format, replayed)
    decide(replayed, traffic)
    assert [(reason or "no reason") in each.reason for each in traffic.shown] == ([] if reason is None else [True])
    assert traffic.requests == (reason is None)


NO_TIMES = ["", "today", "12", "40/Nov/2025:04:40:00 +0000", "21/Foo/2025:04:40:00 +0000", "x/y"]


@pytest.mark.parametrize(
    "text",
    [
        *(json.dumps({"time": time, "method": "GET", "path": "/"}) for time in NO_TIMES),
        '{"time": 1763700000}',
        '{"time": 1763700000, "method": "GET", "path": "-"}',
        '{"method": "GET", "path": "/"}',
        '{"time": 1, "method": "GET", "path": "/%s"}' % ("x" * 5_000),
        "{",
        "[]",
        COMMON.replace("21/Nov/2025", "31/Dec/9999"),
        "203.0.113.9 - " + " [" * 40_000,
        "203.0.113.9 - - " + " " * 90_000,
        '203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "' + '" 1 ' * 20_000,
        "a:" * 45_000,
        json.dumps({"time": 1763700000, "method": "GET", "path": "/\ud800?"}),
        json.dumps({"time": "9999-12-31T23:59:59-05:00", "method": "GET", "path": "/"}),
        json.dumps({"time": "0001-01-01T00:00:00+05:00", "method": "GET", "path": "/"}),
        '{"a":' * 990 + "1" + "}" * 990,
    ],
    ids=lambda text: text[:40].strip(),
)
def test_a_line_that_is_no_request_is_unreadable_and_shown_in_short(text: str) -> None:
    """Also one that is long: to read it takes no more than a look at each sign."""
    log_format = find_format([JSON if text.startswith(("{", "[]")) else COMMON])
    traffic = read_traffic([text], log_format, RuleSet({}, log_format.fields))
    assert (traffic.requests, traffic.unreadable, len(traffic.shown)) == (0, 1, 1)
    assert len(traffic.shown[0].text) <= MAX_TEXT


def test_a_line_without_a_host_meets_rules_of_hosts_like_a_host_that_is_not_allowed(
    folder: Path, settings: Any
) -> None:
    settings.QUOTA = {"RULES": {"api": {"rate": "1/m", "match": "host:api.example"}}}
    settings.ALLOWED_HOSTS = ["*"]
    hosts = [{"host": "api.example"}, {}, {"host": "api.example"}]
    lines = [json.dumps({"ip": "203.0.113.9", "time": START, "method": "GET", "path": "/x/", **host}) for host in hosts]
    assert run_json(log(lines))["rules"]["api"]["requests"] == 3


def test_a_line_that_never_ends_is_read_in_pieces(folder: Path) -> None:
    found = run_json(log([line(0), "x" * 250_000, line(1)]))["log"]
    assert (found["lines"], found["requests"], found["unreadable"]) == (5, 2, 3)


def test_a_closed_stdin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert error_of("-").startswith("stdin is closed.")


def test_a_site_without_urls_is_replayed_by_its_settings(settings: Any, folder: Path) -> None:
    del settings.ROOT_URLCONF
    assert "api" in run(log([line(0), line(1)]))


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_command_prints(folder: Path, settings: Any) -> None:
    settings.ROOT_URLCONF = ()
    shown = blocks("docs/testing.md")
    Path("drafts.toml").write_text(next(text for language, text in shown if language == "toml"))
    moments = [(at / 2, f"203.0.113.{at % 40}", "/search/") for at in range(900)]
    moments += [(at, "198.51.100.7", "/search/") for at in range(0, 600, 2)]
    moments += [(at, "198.51.100.8", "/") for at in range(100)]
    lines = [line(int(second), ip=ip, path=path) for second, ip, path in sorted(moments)]
    Path("access.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    log([json.dumps({"ip": "203.0.113.9", "time": START, "method": "GET", "path": "/search/"})], "access.json")
    for language, text in shown:
        for words, printed in re.findall(r"^\$ manage\.py quota_replay (.*)\n((?:(?!\$).*\n)*)", text, re.MULTILINE):
            assert language == "console"
            found = run(*shlex.split(words))
            assert not printed or printed.strip() == found.strip(), found
