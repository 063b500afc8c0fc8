"""`quota_replay` says what rules would have refused of the requests in an access log."""

import gzip
import io
import json
import re
import shlex
import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path as url
from django.views import View
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, quota
from django_quota.conf import current
from django_quota.engine.operations import DictStates
from django_quota.exceptions import ConfigurationError
from django_quota.http.request_rules import rules_of_view
from django_quota.management.commands import quota_replay
from django_quota.management.commands.quota_replay import hidden, rules_on_views
from django_quota.operating import replay
from django_quota.operating.access_log import UnreadableLineError, find_format, read_time
from django_quota.operating.replay import (
    Demand,
    RuleSet,
    Traffic,
    Unreadable,
    demands,
    find_refusals,
    read_rules,
    read_traffic,
    tightest,
)
from django_quota.stores.redis.store import RedisStore
from django_quota.subjects.subject import digest
from django_quota.testing import clear, freeze
from tests.support.commands import Terminal
from tests.support.inputs import inputs
from tests.support.pages import blocks
from tests.support.steps import ALGORITHMS, SECOND, START


def line(second: int, ip: str = "203.0.113.9", path: str = "/api/plain/", method: str = "GET") -> str:
    """A line of a log, so many seconds after START."""
    time = f"21/Nov/2025:04:{40 + second // 60:02}:{second % 60:02} +0000"
    return f'{ip} - - [{time}] "{method} {path} HTTP/1.1" 200 12 "-" "curl"'


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A site with rules on views, whose Redis must not be asked. pytest-django forbids the database."""
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {"RULES": {"api": {"rate": "3/m", "match": "/api/plain/"}}}
    monkeypatch.setattr(RedisStore, "run", lambda *_: pytest.fail("Redis was asked"))
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("quota_replay", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*words: str) -> dict[str, Any]:
    return json.loads(run(*words, "--json"))  # type: ignore[no-any-return]


def log(lines: Sequence[str], name: str = "access.log") -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return name


RULES: list[dict[str, Any]] = [
    {"api": {"rate": ["2/10s", "5/m"], "match": "/api/", "exclude": "/api/v1/"}, "all": {"rate": "9/m", "match": "/"}},
    {"pair": {"rate": "1/10s", "key": ["ip", "path"], "match": "/"}, "each": {"rate": "4/m", "match": "/"}},
    {"fixed": {"rate": "2/10s", "algorithm": "fixed_window", "key": "global", "match": "/", "shadow": True}},
    {"hour": {"rate": "4/m", "algorithm": "calendar", "tz": "Europe/Berlin", "match": "/", "methods": ["GET"]}},
    {"bucket": {"rate": "2/10s", "algorithm": "token_bucket", "burst": 3, "match": "/", "exempt": "198.51.100.0/24"}},
    {"leaky": {"rate": "3/10s", "algorithm": "leaky_bucket", "key": "header:User-Agent", "match": "/"}},
    {"strict": {"rate": "2/10s", "count_refused": True, "match": "/"},
     "soft": {"rate": "1/s", "block": False, "match": "/"}},
    {"banning": {"rate": "2/10s", "match": "/", "ban": {"after": "2/m", "for": ["30s", "1m"]}}},
    {"agents": {"rate": "1/10s", "distinct": "header:User-Agent", "match": "/"},
     "q": {"rate": "100/10s", "cost": 40, "key": "get:q", "match": "/"}},
]  # fmt: skip
PATHS = [*(f"/{name}/" for name in ("api/plain", "api/search", "api/v1/items", "class", "method")), "/api/plain/?q=1"]

Requests = list[tuple[int, str, str, str, str]]  # time, method, address, path and user agent

STEPS = st.lists(
    st.tuples(
        st.integers(0, 4 * SECOND) | st.integers(0, 15 * SECOND),  # until the next one
        st.sampled_from(["GET", "GET", "POST"]),
        st.sampled_from(["203.0.113.9", "203.0.113.9", "198.51.100.7", "2001:db8::1", "2001:db8::2"]),
        st.sampled_from(PATHS), st.sampled_from(["curl", "wget"]),
    ),
    min_size=5, max_size=25,
)  # fmt: skip


def timed(steps: Requests) -> Requests:
    times = accumulate(wait for wait, *_ in steps)
    return [(START + time, *step[1:]) for time, step in zip(times, steps, strict=True)]


def as_lines(traffic: Requests) -> list[str]:
    return [
        json.dumps({"time": time, "remote_addr": ip, "method": method, "uri": path, "http_user_agent": agent})
        for time, method, ip, path, agent in traffic
    ]


def live(traffic: Requests) -> list[int]:
    """Send requests through the middleware, on the memory store; return the times of those that are refused."""
    clear()
    client, found = Client(raise_request_exception=False), []
    for time, method, ip, path, agent in traffic:
        with freeze(time):
            found.append((time, client.generic(method, path, REMOTE_ADDR=ip, HTTP_USER_AGENT=agent).status_code))
    return [time for time, status in found if status == 429]


def read(lines: Sequence[str], rules: dict[str, Any] | None = None) -> tuple[RuleSet, Traffic]:
    """Read lines for the rules of the settings and of views; return the rules that are replayed, too."""
    log_format = find_format(lines)
    known = read_rules(current().rules, "RULES") if rules is None else read_rules(rules, "RULES")
    replayed = RuleSet(known, log_format.fields, (rules_on_views(), rules_of_view))
    traffic = read_traffic(lines, log_format, replayed)
    assert not traffic.unreadable, traffic.shown
    return replayed, traffic


def test_a_long_log_forgets_no_count_that_still_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.operating.replay.SWEEP_INTERVAL", 2)

    refusals = find_refusals(*read([line(second) for second in range(4)]))

    assert list(refusals.positions) == [3]


def test_the_progress_of_deciding_ends_at_the_number_of_requests() -> None:
    moved: list[int] = []

    find_refusals(*read([line(second) for second in range(4)]), moved.append)

    assert sum(moved) == 4


def test_what_has_expired_does_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    states = DictStates()
    monkeypatch.setattr(replay, "SWEEP_INTERVAL", 2)
    monkeypatch.setattr(replay, "DictStates", lambda: states)
    rules = {"each": {"rate": "1/10s", "algorithm": "fixed_window", "match": "/"}}
    seconds = {0: "192.0.2.1", 10: "192.0.2.2", 11: "192.0.2.3", 12: "192.0.2.4"}

    find_refusals(*read([line(second, ip) for second, ip in seconds.items()], rules))

    assert [key.partition("}")[0] for key in states.kept] == [
        f"replay:1:{{ip:{ip}" for ip in ("192.0.2.2", "192.0.2.3", "192.0.2.4")
    ]


def test_a_rule_counts_by_an_argument_of_the_path(settings: Any) -> None:
    settings.ROOT_URLCONF = (url("items/<int:pk>/", lambda request, pk: HttpResponse()),)
    rules = {"item": {"rate": "1/m", "key": "kwarg:pk", "match": "/"}}

    replayed, traffic = read([line(n, path=path) for n, path in enumerate(["/items/7/", "/items/8/", "/x/"])], rules)

    assert [subject for plan in traffic.plans for _, subject, _ in plan] == [
        "kwarg.pk:7",
        "kwarg.pk:8",
        "ip:203.0.113.9",
    ]
    assert list(find_refusals(replayed, traffic).positions) == []


def test_a_rule_of_a_host_counts_its_requests_alone() -> None:
    lines = [
        json.dumps({"time": START + n, "ip": "192.0.2.1", "host": host, "request": "GET / HTTP/1.1"})
        for n, host in enumerate(["a.example", "b.example", "a.example"])
    ]

    replayed, traffic = read(lines, {"one": {"rate": "1/m", "match": "host:a.example"}})

    assert (len(traffic.times), traffic.requests) == (2, 3)
    assert list(find_refusals(replayed, traffic).positions) == [1]


def test_a_log_that_is_not_sorted_begins_with_its_first_time() -> None:
    _, traffic = read([line(5), line(9, path="/without/a/rule/"), line(1, path="/without/a/rule/"), line(3)])

    assert (traffic.begins, traffic.ends) == (START + SECOND, START + 9 * SECOND)


@given(st.sampled_from(RULES), STEPS)
@inputs(100)
def test_replay_refuses_what_the_middleware_refuses(rules: dict[str, Any], steps: Requests) -> None:
    sent = timed(steps)
    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}, ROOT_URLCONF="tests.support.urls_of_rules"):
        replayed, traffic = read(as_lines(sent))
        assert [traffic.times[position] for position in find_refusals(replayed, traffic).positions] == live(sent)


def test_requests_of_one_time_stay_in_their_order() -> None:
    """Also in a log that is sorted: a request that one rule refuses does not count for another."""
    rules = '[one]\nrate = "1/m"\nmatch = "/one/"\n[all]\nrate = "2/m"\nkey = "global"\nmatch = "/"\n'
    Path("two.toml").write_text(rules)
    same = [line(3, "192.0.2.1", "/one/"), line(3, "192.0.2.1", "/one/"), line(3), line(3, "192.0.2.9")]
    found = run_json(log([line(9, path="/"), *same]), "--rules", "two.toml")["rules"]
    assert (found["one"]["refused"], found["all"]["refused"]) == (1, 2)


@given(
    st.sampled_from([*({"algorithm": name} for name in ALGORITHMS), {"distinct": "header:User-Agent"}]),
    st.lists(
        st.tuples(
            st.integers(0, 8) | st.integers(0, 8 * SECOND), st.just("GET"), st.sampled_from(["1.1.1.1", "2.2.2.2"]),
            st.just("/"), st.sampled_from("abcde"),
        ),
        min_size=1, max_size=40,
    ),
)  # fmt: skip
@inputs(150)
def test_the_tightest_count_is_the_least_that_refuses_nobody(options: dict[str, Any], steps: Requests) -> None:
    lines = as_lines(timed(steps))

    def replayed(count: int) -> tuple[RuleSet, Traffic]:
        return read(lines, {"api": {"rate": f"{count}/10s", "match": "/", **options}})

    demand = demands(*replayed(5))["api"]
    least = tightest(demand, demand.limits[0])

    assert least is not None
    assert not find_refusals(*replayed(least)).positions
    assert least == 1 or find_refusals(*replayed(least - 1)).positions


def test_the_demand_of_two_rules_of_one_name_has_the_limits_of_both() -> None:
    demand = Demand([Rule.make("api", "5/m"), Rule.make("api", "5/m; 50/h")])

    assert [str(limit.rate) for limit in demand.limits] == ["5/m", "50/h"]


@pytest.mark.parametrize(
    ("rule", "moments", "least"),
    [
        pytest.param(
            {"rate": "5/10s", "precision": 2}, [1.5 * n for n in range(30)], 10, id="a slice counts longer than 10 s"
        ),
        pytest.param(
            {"rate": "60/m", "algorithm": "token_bucket", "burst": 2}, range(10), 54, id="eight come back in 9 s"
        ),
        pytest.param(
            {"rate": "60/m", "algorithm": "token_bucket", "burst": 4, "cost": 3},
            [0, 10],
            12,
            id="two come back in 10 s",
        ),
        pytest.param(
            {"rate": "60/m", "algorithm": "token_bucket", "burst": 2}, [0] * 3, None, id="never fits into the bucket"
        ),
        pytest.param({"rate": "150/10s", "cost": 40}, [0] * 5, 200, id="cost"),
        pytest.param({"rate": "5/10s", "share": 0.5}, [0] * 3, 6, id="a share"),
        pytest.param(
            {"rate": "5/h", "algorithm": "calendar"},
            [0, 7_200, 7_201, 7_202],
            3,
            id="an hour that is fuller than one before",
        ),
    ],
)
def test_the_tightest_count_depends_on_the_options_of_the_rule(
    rule: dict[str, Any], moments: Sequence[float], least: int | None
) -> None:
    lines = as_lines([(START + int(at * SECOND), "GET", "203.0.113.9", "/", "curl") for at in moments])

    demand = demands(*read(lines, {"api": {"match": "/", **rule}}))["api"]

    assert tightest(demand, demand.limits[0]) == least


@pytest.mark.parametrize(
    ("values", "least"),
    [
        pytest.param([], 1, id="none"),
        pytest.param([(0, "a")], 1, id="one"),
        pytest.param([(0, "a"), (0, "a"), (20, "b")], 1, id="one twice at a moment"),
        pytest.param([(0, "a"), (0, "b"), (9, "b")], 2, id="of one window"),
        pytest.param([(0, "a"), (10, "b")], 1, id="at the moment when a window ends"),
        pytest.param([(0, "a"), (1, "b"), (12, "c")], 2, id="of a window that has ended"),
        pytest.param([(0, "a"), (8, "a"), (12, "b")], 2, id="used again in the window"),
    ],
)
def test_the_tightest_count_of_different_values_is_the_most_in_any_window(
    values: Sequence[tuple[int, str]], least: int
) -> None:
    lines = as_lines([(START + at * SECOND, "GET", "203.0.113.9", "/", value) for at, value in values])
    demand = demands(*read(lines, {"api": {"match": "/", "rate": "5/10s", "distinct": "header:User-Agent"}}))["api"]

    assert tightest(demand, demand.limits[0]) == least


@pytest.mark.parametrize(("most", "least"), [(3, 3), (2, None)], ids=["as many as are kept", "more"])
def test_more_values_than_a_rule_can_keep_have_no_tightest_count(
    most: int, least: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_VALUES", most)
    lines = as_lines([(START, "GET", "203.0.113.9", "/", value) for value in "abc"])
    demand = demands(*read(lines, {"api": {"match": "/", "rate": "5/10s", "distinct": "header:User-Agent"}}))["api"]

    assert tightest(demand, demand.limits[0]) == least


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [pytest.param([], False, id="by default"), pytest.param(["--show-subjects"], True, id="with --show-subjects")],
)
def test_subjects_are_shown_only_if_asked_for(options: list[str], is_shown: bool) -> None:
    printed = run(log([line(second) for second in range(5)]), *options)

    assert ("ip:203.0.113.9" in printed) is is_shown


def test_of_many_subjects_the_three_that_are_refused_most_are_listed() -> None:
    clients = [("203.0.113.1", 4), ("203.0.113.2", 6), ("203.0.113.4", 5), ("203.0.113.3", 5)]
    lines = [line(second, ip) for ip, number in clients for second in range(number)]

    worst = run_json(log(lines), "--show-subjects")["rules"]["api"]["worst"]

    assert [(each["subject"], each["refused"]) for each in worst] == [
        ("ip:203.0.113.2", 3), ("ip:203.0.113.3", 2), ("ip:203.0.113.4", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "found"), [(999, "combined"), (1_000, "common")], ids=["the last of the sample", "the one after it"]
)
def test_the_first_thousand_lines_say_whether_a_log_has_headers(before: int, found: str) -> None:
    plain = line(0).removesuffix(' "-" "curl"')

    assert run_json(log([plain] * before + [line(1)]), "--rate", "9/m")["log"]["format"] == found


def test_on_a_terminal_it_draws_its_progress(settings: Any) -> None:
    lines = [line(second % 60) for second in range(2_500)]

    call_command("quota_replay", log(lines), stdout=io.StringIO(), stderr=(terminal := Terminal()))

    drawn = [part.rpartition("\r")[2] for part in terminal.getvalue().split("\n")]
    full = "█" * 20
    rules = len(run_json("access.log")["rules"])
    assert drawn[0].startswith("Reading lines 2,000")
    assert drawn[1:] == [f"Deciding requests {full} 2,500 of 2,500", f"Searching rates {full} {rules} of {rules}", ""]


@pytest.mark.parametrize("method", ["get", "head", "post", "put", "patch", "delete", "options"])
def test_the_rule_of_each_method_of_a_class_is_found(method: str, settings: Any) -> None:
    def answer(self: View, request: Any) -> HttpResponse:
        return HttpResponse()

    view: Any = type("Page", (View,), {method: quota("9/m", name=method)(answer)})
    settings.ROOT_URLCONF = (url("page/", view.as_view()),)

    assert [rule.name for rule in rules_on_views()] == [method]


def test_a_wrong_rule_of_one_method_hides_no_other(settings: Any) -> None:
    def answer(self: View, request: Any) -> HttpResponse:
        return HttpResponse()

    rules = {"get": quota(rule="gone")(answer), "post": quota("9/m", name="post")(answer)}
    view: Any = type("Page", (View,), rules)
    settings.ROOT_URLCONF = (url("page/", view.as_view()),)

    assert [rule.name for rule in rules_on_views()] == ["post"]


@pytest.fixture
def long_report() -> str:
    """A report about rules with long names and several rates, long paths, and lines that are not requests."""
    rule = 'rate = "10/s; 500/h; 5000/d"\nmatch = "/"\nkey = ["ip", "path"]\n'
    Path("a-long-name-of-drafts.toml").write_text("".join(f"[a-rule-with-a-long-name-{n}]\n{rule}" for n in "ab"))
    lines = [line(second, path="/a/very/long/path/" * 9) for second in range(50)] + ["?" * 200, "\x1b[31m"]
    return run(log(lines), "--rules", "a-long-name-of-drafts.toml")


def test_the_report_fits_eighty_columns(long_report: str) -> None:
    assert max(map(len, long_report.splitlines())) <= 80


def test_the_report_has_no_control_character_of_the_log(long_report: str) -> None:
    assert "\x1b" not in long_report


class TestOneRate:
    @pytest.fixture(autouse=True)
    def two_clients(self, site: None) -> None:
        """Each sends three requests, all to different paths."""
        log([line(second, ip=f"203.0.113.{second % 2}", path=f"/{second}") for second in range(6)])

    def test_it_is_replayed_alone(self) -> None:
        found = run_json("access.log", "--rate", "2/m", "--key", "ip")

        assert (list(found["rules"]), found["refused"]) == (["2/m by ip"], 2)

    def test_the_text_has_its_figures_though_it_refuses_nobody(self) -> None:
        printed = run("access.log", "--rate", "9/m")

        assert "  refused             0 (0.0%)\n" in printed
        assert "refused most" not in printed

    def test_it_may_have_a_key_of_several_parts(self) -> None:
        assert run_json("access.log", "--rate", "2/m", "--key", "ip", "--key", "path")["refused"] == 0

    def test_its_key_may_be_the_network_of_an_address(self) -> None:
        assert run_json("access.log", "--rate", "2/m", "--key", "ip/24")["refused"] == 4

    def test_its_key_is_the_address_unless_another_is_given(self) -> None:
        assert list(run_json("access.log", "--rate", "2/m")["rules"]) == ["2/m by ip"]

    def test_a_key_of_several_parts_is_in_the_title(self) -> None:
        found = run_json("access.log", "--rate", "2/m", "--key", "ip", "--key", "path")

        assert found["title"] == "2/m by ip + path"

    def test_the_rules_of_the_site_are_not_replayed_with_it(self) -> None:
        assert run_json("access.log", "--rate", "2/m")["left_out"] == {}

    def test_a_quiet_command_prints_the_report(self) -> None:
        assert "2/m by ip would have refused 2 requests (33.3%)." in run("access.log", "--rate", "2/m", "-v", "0")

    def test_it_may_apply_to_some_paths(self) -> None:
        assert run_json("access.log", "--rate", "2/m", "--match", "/5")["rules"]["2/m by ip"]["requests"] == 1


class TestChosenRule:
    @pytest.fixture(autouse=True)
    def thirty_requests(self, site: None, settings: Any) -> None:
        """To a view with one of two rules; the other one applies everywhere and bans."""
        ban = {"after": "2/m", "for": "10s"}
        settings.QUOTA = {"RULES": {"api": {"rate": "1/h", "match": "/", "ban": ban}, "named": "4/m"}}
        log([line(second, path="/named/") for second in range(30)])

    @pytest.fixture
    def named_view(self, settings: Any) -> None:
        settings.ROOT_URLCONF = (url("named/", quota(rule="named")(lambda request: HttpResponse())),)

    def test_it_is_replayed_alone(self) -> None:
        found = run_json("access.log", "--rule", "api")

        assert (list(found["rules"]), found["left_out"]) == (["api"], {})

    def test_its_refusals_are_counted(self) -> None:
        assert run_json("access.log", "--rule", "api")["rules"]["api"]["refused"] == 29

    def test_its_bans_are_counted(self) -> None:
        assert run_json("access.log", "--rule", "api")["rules"]["api"]["bans"] == 3

    @pytest.mark.usefixtures("named_view")
    def test_it_may_be_the_rule_of_a_view(self) -> None:
        assert run_json("access.log", "--rule", "named")["refused"] == 26

    def test_it_may_be_a_rule_that_only_a_view_has(self, settings: Any) -> None:
        settings.ROOT_URLCONF = (url("named/", quota("5/m", name="own")(lambda request: HttpResponse())),)

        assert list(run_json("access.log", "--rule", "own")["rules"]) == ["own"]

    @pytest.mark.usefixtures("named_view")
    def test_a_draft_takes_the_place_of_the_rule_that_a_view_names(self) -> None:
        Path("drafts.toml").write_text('named = "2/m"\n')

        assert run_json("access.log", "--rule", "named", "--rules", "drafts.toml")["refused"] == 28


@pytest.mark.parametrize("known", [{}, {"named": "1/m"}], ids=["a new name", "a name of the settings"])
def test_a_draft_leaves_a_view_with_a_rule_of_its_own(known: dict[str, str], settings: Any) -> None:
    settings.QUOTA = {"RULES": known}
    view = quota("4/m", key="ip", name="named")(lambda request: HttpResponse())
    settings.ROOT_URLCONF = (url("named/", view),)
    lines = [line(second, path="/named/") for second in range(6)]

    replayed, traffic = read(lines, {"named": "2/m"})

    assert list(find_refusals(replayed, traffic).positions) == [4, 5]


def test_a_packed_log_is_read() -> None:
    Path("1.gz").write_bytes(gzip.compress("\n".join(line(second) for second in range(5)).encode()))

    found = run_json("1.gz")

    assert (found["log"]["requests"], found["refused"]) == (5, 2)


def test_a_line_with_bytes_that_are_not_utf_8_is_read() -> None:
    Path("access.log").write_bytes(line(0).replace("curl", "caf\xe9").encode("latin-1") + b"\n")

    assert run_json("access.log")["log"]["requests"] == 1


def test_a_packed_log_that_is_damaged_is_named() -> None:
    packed = bytearray(gzip.compress("\n".join(map(line, range(50))).encode()))
    packed[15:18] = bytes(byte ^ 0xFF for byte in packed[15:18])
    Path("damaged.gz").write_bytes(packed)

    with pytest.raises(CommandError, match=r"^'damaged\.gz' cannot be read to its end: "):
        run("damaged.gz")


def test_a_key_of_the_settings_that_is_wrong_is_named(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"api": {"rate": "9/m", "match": "/", "key": "ipp"}}}
    log([line(0)])

    with pytest.raises(CommandError) as raised:
        run("access.log")

    assert str(raised.value) == "QUOTA[\"RULES\"]['api']: key='ipp' is not a key. Did you mean 'ip'?"


def test_a_rule_without_a_limit_is_replayed_as_unlimited(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"free": {"rate": None, "match": "/"}}}
    log([line(0)])

    assert run_json("access.log")["rules"]["free"]["rate"] == "unlimited"
    assert "free\n  rate                unlimited\n" in run("access.log")


def test_a_rule_that_refuses_by_any_count_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_replay, "tightest", lambda *_: None)
    log([line(0)])

    assert run_json("access.log", "--rate", "2/m")["rules"]["2/m by ip"]["no_refusals_from"] == [None]
    assert "  no refusals from    no count\n" in run("access.log", "--rate", "2/m")


def test_no_name_of_a_rule_is_divided_at_a_hyphen(settings: Any) -> None:
    names = [f"long-name-of-the-rule-{number}" for number in range(20)]
    settings.QUOTA = {"RULES": {name: {"rate": "9/m", "match": "/other/"} for name in names}}
    log([line(0)])

    printed = run("access.log").split()

    assert {f"{name}," for name in names[:18]} <= set(printed)


def test_the_number_of_a_line_has_its_digits_grouped() -> None:
    log([*[line(0)] * 1_233, "<html>"])

    assert "    line 1,234, " in run("access.log")


def test_several_logs_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is what another program prints."""
    lines = [line(second) for second in range(5)]
    Path("1.gz").write_bytes(gzip.compress("\n".join(lines[:2]).encode()))
    log(lines[2:4], "2.log")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(lines[4].encode()))))

    found = run_json("2.log", "1.gz", "-")

    assert (found["log"]["requests"], found["refused"]) == (5, 2)


DRAFTS = """
[free]
rate = "9/m"
match = "/nowhere/"
[api]
rate = ["2/10s", "4/m"]
match = "/"
ban = {after = "2/m", for = "10s"}
[pair]
rate = "1/m"
key = ["ip", "path"]
match = "/api/"
shadow = true
[unplaced]
rate = "9/m"
[mine]
rate = "9/m"
key = "user"
match = "/"
[yours]
rate = "9/m"
key = "user"
match = "/"
"""

REPORT = """\
access.log: 13 requests in the format combined
  from 2025-11-21 04:40:00 to 2025-11-21 04:41:10 UTC
  1 line could not be used, for example:
    line 13, it is not in this format: nonsense

drafts.toml would have refused 6 requests (46.2%).

api
  rate                2/10s; 4/m
  key                 ip
  requests            13
  refused             6 (46.2%)
  subjects            4
  subjects refused    3 (75.0%)
  bans                3
  no refusals from    4/10s; 4/m
  refused most
    ip:203.0.113.0
      2 of 4 requests (50.0%)
    ip:203.0.113.1
      2 of 4 requests (50.0%)
    ip:203.0.113.2
      2 of 4 requests (50.0%)

pair
  rate                1/m (shadow)
  key                 ip + path
  requests            12
  refused             9 (75.0%)
  subjects            3
  subjects refused    3 (100.0%)
  no refusals from    4/m
  refused most
    ip:203.0.113.0+path:/api/plain/
      3 of 4 requests (75.0%)
    ip:203.0.113.1+path:/api/plain/
      3 of 4 requests (75.0%)
    ip:203.0.113.2+path:/api/plain/
      3 of 4 requests (75.0%)

No request matched free, two, class, method, again.

Left out, because a log does not show what these rules need:
  by-method-decorator: your view, your code or a failed login decides it
  mine, yours: key='user' needs the user
  unplaced: it has no match=, and no view has it on its outside. Add, for
    example, match = '/search/'

No refusals from: the smallest count over the same window with which this rule
alone would have refused none of these requests; one less refuses some.
These are upper bounds. A client that is refused usually slows down, so that
many of the requests that were refused here would not have come. Counts begin
at zero where the log begins, without overrides and bans.
"""


class TestWholeReport:
    """Three clients send four requests each, three seconds apart. A fourth client sends one a minute later."""

    @pytest.fixture(autouse=True)
    def thirteen_requests(self, site: None) -> None:
        Path("drafts.toml").write_text(DRAFTS)
        lines = [line(second, f"203.0.113.{second % 3}") for second in range(12)]
        log([*lines, "nonsense", line(70, "198.51.100.1", "/x/")])

    def test_the_text_says_what_each_rule_would_have_done(self) -> None:
        assert run("access.log", "--rules", "drafts.toml", "--show-subjects") == REPORT

    def test_json_has_the_log(self) -> None:
        assert run_json("access.log", "--rules", "drafts.toml")["log"] == {
            "files": ["access.log"],
            "format": "combined",
            "lines": 14,
            "requests": 13,
            "begins": "2025-11-21T04:40:00+00:00",
            "ends": "2025-11-21T04:41:10+00:00",
            "unreadable": 1,
            "first_unreadable": [{"number": 13, "reason": "it is not in this format", "text": "nonsense"}],
        }

    def test_json_has_the_figures_of_a_rule(self) -> None:
        found = run_json("access.log", "--rules", "drafts.toml", "--show-subjects")

        assert (found["title"], found["refused"]) == ("drafts.toml", 6)
        assert found["rules"]["pair"] == {
            "rate": "1/m",
            "key": "ip + path",
            "shadow": True,
            "requests": 12,
            "refused": 9,
            "subjects": 3,
            "subjects_refused": 3,
            "bans": 0,
            "worst": [
                {"subject": f"ip:203.0.113.{client}+path:/api/plain/", "requests": 4, "refused": 3}
                for client in range(3)
            ],
            "no_refusals_from": ["4/m"],
        }

    def test_a_rule_that_nothing_matches_has_no_caveat_about_its_rates(self) -> None:
        printed = run("access.log", "--rate", "1000/m", "--match", "/z/").splitlines()

        assert printed[printed.index("1000/m by ip would have refused 0 requests (0.0%).") + 1 :] == [
            "",
            "No request matched 1000/m by ip.",
            "",
            *REPORT.splitlines()[-3:],
        ]

    def test_the_requests_of_two_files_are_counted_together(self) -> None:
        printed = run("access.log", "access.log", "--rate", "1000/m").splitlines()

        assert printed[0] == "2 files: 26 requests in the format combined"


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        pytest.param("ip:203.0.113.0", f"ip:{digest('203.0.113.0')[:12]}", id="an address"),
        pytest.param(
            "ip:203.0.113.0+path:/a", f"ip:{digest('203.0.113.0')[:12]}+path:{digest('/a')[:12]}", id="two parts"
        ),
        pytest.param("global", "global", id="no value"),
    ],
)
def test_a_digest_stands_for_the_value_of_each_part(subject: str, shown: str) -> None:
    assert hidden(subject) == shown


class TestUnreadableLines:
    @pytest.fixture
    def found(self, site: None) -> Any:
        """What is said of a log with one request."""
        broken = ["nonsense", line(1, path="\\x16\\x03"), line(2).replace("GET /api/plain/ HTTP/1.1", "-")]
        endless = "x" * 250_000  # is read in pieces
        return run_json(log([line(0), *broken, line(3, ip="-"), "", endless]))["log"]

    def test_they_are_counted(self, found: dict[str, Any]) -> None:
        assert (found["requests"], found["unreadable"], found["lines"]) == (1, 7, 9)

    def test_the_first_ones_have_a_reason(self, found: dict[str, Any]) -> None:
        reasons = [(each["number"], each["reason"]) for each in found["first_unreadable"]]

        assert reasons == [(2, "it is not in this format"), (3, "it has no request"), (4, "it has no request")]

    def test_their_control_characters_are_escaped(self) -> None:
        log(["\x1b[2J\x07\u202egnp", line(0, method="get")])

        with pytest.raises(
            CommandError, match=r"The first: line 1, it is not in this format: \\x1b\[2J\\x07\\u202egnp$"
        ):
            run("access.log")


@pytest.mark.parametrize(("length", "lines"), [(99_999, 2), (100_000, 3)], ids=["the longest line", "a longer one"])
def test_a_line_longer_than_a_hundred_thousand_bytes_is_read_as_several(length: int, lines: int) -> None:
    assert run_json(log([line(0), "x" * length]))["log"]["lines"] == lines


NEEDS = {
    "of_staff": ({"exempt": "staff"}, "exempt='staff' needs the user"),
    "values": ({"distinct": True}, "distinct=True: only your code knows the value"),
    "by_user": ({"key": "user"}, "key='user' needs the user"),
    "by_body": ({"key": "post:phone"}, "key='post:phone' needs the body"),
    "by_header": ({"key": "header:X-Api-Key"}, "key='header:X-Api-Key' needs it in the log"),
    "by_function": ({"key": line}, "key= is a function"),
    "settled": ({"settle": line}, "settle= is a function"),
    "tiered": ({"rate": {"anonymous": "1/m", "authenticated": "2/m"}}, "its rate depends on the user"),
    "exempt_staff": ({"exempt": "staff"}, "exempt='staff' needs the user"),
    "by_user_without_a_place": ({"key": "user", "match": None}, "key='user' needs the user"),
    "of_host": ({"match": "host:a.example"}, "match= needs the host"),
    "not_on_host": ({"exclude": "host:a.example"}, "match= needs the host"),
    "by_user_or_address": ({"key": "user_or_ip"}, "key='user_or_ip' needs the user"),
    "by_session": ({"key": "session"}, "key='session' needs the session"),
    "by_json": ({"key": "json:phone"}, "key='json:phone' needs the body"),
    "by_cookie": ({"key": "cookie:sid"}, "key='cookie:sid' needs it in the log"),
    "by_second_part": ({"key": ["ip", "session"]}, "key='session' needs the session"),
    "values_of_a_header": ({"distinct": "header:X-Device"}, "distinct='header:X-Device' needs it in the log"),
}

NO_ADDRESS = {
    "key": ({"key": "ip"}, "key='ip' needs it in the log"),
    "key of a network": ({"key": "ip/24"}, "key='ip/24' needs it in the log"),
    "exempt networks": ({"key": "global", "exempt": "10.0.0.0/8"}, "exempt= needs the client's address"),
    "nothing": ({"key": "global"}, None),
}


class TestLeftOutRules:
    """A log does not show what they need."""

    @pytest.fixture(autouse=True)
    def rules_without_a_place(self, site: None, settings: Any) -> None:
        settings.QUOTA["RULES"] |= dict.fromkeys(["unplaced", *(f"r{number}" for number in range(30))], "1/m")
        log([line(0)])

    @pytest.mark.parametrize(("options", "reason"), NEEDS.values(), ids=NEEDS)
    def test_a_rule_is_named_with_what_it_needs(self, options: dict[str, Any], reason: str, settings: Any) -> None:
        settings.QUOTA["RULES"] |= {"needing": {"rate": "1/m", "match": "/", **options}}

        assert run_json("access.log")["left_out"].get("needing") == reason

    @pytest.mark.parametrize(("options", "reason"), NO_ADDRESS.values(), ids=NO_ADDRESS)
    def test_a_log_without_addresses_leaves_out_the_rules_that_need_them(
        self, options: dict[str, Any], reason: str | None, settings: Any
    ) -> None:
        settings.QUOTA["RULES"] |= {"needing": {"rate": "1/m", "match": "/", **options}}
        log([json.dumps({"time": START, "request": "GET / HTTP/1.1"})])

        assert run_json("access.log")["left_out"].get("needing") == reason

    @pytest.mark.parametrize("sent", [{"cookie_sid": "x"}, {"http_cookie": "sid=x"}], ids=["one cookie", "all cookies"])
    def test_a_rule_by_a_cookie_is_replayed_if_the_log_has_it(self, sent: dict[str, str], settings: Any) -> None:
        settings.QUOTA["RULES"] |= {"by_cookie": {"rate": "1/m", "match": "/", "key": "cookie:sid"}}
        log(
            [json.dumps({"time": START + n, "ip": f"192.0.2.{n}", "request": "GET / HTTP/1.1", **sent}) for n in (1, 2)]
        )

        assert run_json("access.log")["rules"]["by_cookie"]["refused"] == 1

    def test_a_rule_that_needs_only_what_a_log_shows_is_replayed(self, settings: Any) -> None:
        key = ("ip", "ip/24", "path", "get:q", "global", "header:user-agent")
        settings.QUOTA["RULES"] |= {"shown": {"rate": "1/m", "match": "/", "key": key, "exempt": "10.0.0.0/8"}}

        assert "shown" not in run_json("access.log")["left_out"]

    @pytest.mark.parametrize(
        ("rule", "reason"),
        [
            pytest.param("unplaced", "has no match=", id="of the settings"),
            pytest.param("by-method-decorator", "your code", id="of a view"),
        ],
    )
    def test_a_rule_that_the_middleware_does_not_decide_is_named(self, rule: str, reason: str) -> None:
        assert reason in run_json("access.log")["left_out"][rule]

    def test_a_slot_is_named(self, settings: Any) -> None:
        settings.QUOTA["RULES"] |= {"exports": {"at_once": 2, "match": "/"}}

        assert run_json("access.log")["left_out"]["exports"] == "a slot limits how many run at once"

    def test_a_rule_of_code_is_named_with_the_reason(self) -> None:
        left_out = run_json("access.log")["left_out"]

        assert left_out["by-method-decorator"] == "your view, your code or a failed login decides it"

    def test_a_rule_of_code_that_is_chosen_is_the_only_one_named(self) -> None:
        left_out = run_json("access.log", "--rule", "by-method-decorator")["left_out"]

        assert left_out == {"by-method-decorator": "your view, your code or a failed login decides it"}

    def test_of_many_rules_the_first_twenty_are_named(self) -> None:
        assert re.search(r"r0, r1, r10, .* r25, r26 and 11 more: ", " ".join(run("access.log").split()))

    def test_a_report_without_rules_says_so(self) -> None:
        assert "10/m by user: no rule could be replayed.\n" in run("access.log", "--rate", "10/m", "--key", "user")


def test_requests_from_two_ports_of_an_address_are_of_one_client() -> None:
    lines = [
        line(second, ip) for second, ip in enumerate(["203.0.113.9:4711", "203.0.113.9:4712", "[2001:db8::7]:4711"])
    ]
    _, traffic = read(lines, {"all": {"rate": "1/m", "match": "/"}})
    assert (traffic.unreadable, len(traffic.plans)) == (0, 2)


class TestBehindProxies:
    WORDS = ("access.log", "--rate", "0/m", "--show-subjects")
    PROXY, ALL = {"ip:10.0.0.1"}, {"ip:203.0.113.1", "ip:203.0.113.2", "ip:10.0.0.1"}

    @pytest.fixture(autouse=True)
    def requests_from_a_proxy(self, site: None) -> None:
        hops = ["203.0.113.1", "6.6.6.6, 203.0.113.1", "203.0.113.2", None]
        lines = [
            json.dumps({"ip": "10.0.0.1", "time": START + n, "request": "GET / HTTP/1.1", "http_x_forwarded_for": hop})
            for n, hop in enumerate(hops)
        ]
        log(lines)

    @pytest.mark.parametrize(
        ("trusted", "options", "found"),
        [
            pytest.param({}, [], PROXY, id="no trusted proxy"),
            pytest.param({"TRUSTED_PROXIES": ["10.0.0.0/8"]}, [], ALL, id="trusted networks"),
            pytest.param({"TRUSTED_PROXY_COUNT": 1}, [], PROXY, id="the log of a trusted proxy"),
            pytest.param({"TRUSTED_PROXY_COUNT": 2}, [], ALL, id="the log of the second of two trusted proxies"),
            pytest.param({"TRUSTED_PROXY_COUNT": 1}, ["--server-log"], ALL, id="the log of the server"),
        ],
    )
    def test_the_client_is_found(
        self, trusted: dict[str, Any], options: list[str], found: set[str], settings: Any
    ) -> None:
        settings.QUOTA = trusted

        rule = run_json(*self.WORDS, *options)["rules"]["0/m by ip"]

        assert {each["subject"] for each in rule["worst"]} == found

    def test_a_note_says_that_a_proxy_counts_as_a_client(self, settings: Any) -> None:
        settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8"]}

        (note, _) = run_json(*self.WORDS)["notes"]

        assert note == (
            "10.0.0.1 counts as a client, but it is one of TRUSTED_PROXIES. Add X-Forwarded-For to the log, or use the "
            "log of the proxy."
        )

    def test_the_note_names_a_proxy_that_any_rule_counts(self, settings: Any) -> None:
        settings.QUOTA = {
            "TRUSTED_PROXIES": ["10.0.0.0/8"],
            "RULES": {
                "all": {"rate": "5/m", "key": "global", "match": "/"},
                "each": {"rate": "5/m", "key": "ip", "match": "/"},
            },
        }

        assert run_json("access.log")["notes"][0].startswith("10.0.0.1 counts as a client")

    def test_the_note_names_one_proxy_of_several(self, settings: Any) -> None:
        settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8", "203.0.113.0/24"]}
        log([line(0, "203.0.113.2"), line(1, "10.0.0.1")])

        (note, _) = run_json(*self.WORDS)["notes"]

        assert note.startswith("10.0.0.1 counts as a client")


KEYED = '[api]\nrate = "10/m"\nkey = "ip/x"\nmatch = "/"\n'


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere.log"], "^There is no file 'nowhere.log'. Give the path of an access log, or - for stdin.$"),
        (["empty.log"], r"^No line of the log could be used as a request \(combined\)\.$"),
        (["access.log", "--rules", "no.toml"], "--rules no.toml: No such file or directory. Use a TOML file of rules."),
        (
            ["access.log", "--rules", "empty.toml"],
            '^--rules empty.toml has no rule. Write, for example: search = {rate = "10/m", match = "/"}$',
        ),
        (["timeless.json"], "The JSON of the log has no time. Name it 'time' in the log."),
        (["access.log", "--rules", "broken.toml"], r"^--rules broken.toml is not TOML: .*\.$"),
        (["access.log", "--rules", "cut.gz"], r"^--rules cut.gz is not TOML: .*\.$"),
        (["access.log", "--rules", "wrong.toml"], r"wrong.toml\['api'\]: '10/month' is not a rate"),
        (
            ["access.log", "--rules", "keyed.toml"],
            r"^keyed.toml\['api'\]: key='ip/x' is not a key. Use 'ip/24' for 1 to 32 bits",
        ),
        (["access.log", "--key", "ip"], r"^--key and --match are only for --rate. Add, for example, --rate 10/m.$"),
        (["access.log", "--match", "/"], r"^--key and --match are only for --rate. Add, for example, --rate 10/m.$"),
        (
            ["access.log", "--rate", "10/m", "--rules", "wrong.toml"],
            r"^--rate is a rule by itself. Leave --rules and --rule out.$",
        ),
        (
            ["access.log", "--rate", "10/m", "--rule", "api"],
            r"^--rate is a rule by itself. Leave --rules and --rule out.$",
        ),
        (["access.log", "--rule", "apy"], r"^--rule 'apy' is not the name of a rule\. Did you mean 'api'\?$"),
        (["broken.toml"], r"unknown. It begins with '\[api'. Log in the combined format, or one JSON object a line.$"),
        (["cut.gz"], "^'cut.gz' cannot be read to its end: Compressed file ended before the end-of-stream marker"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], error: str) -> None:
    log([line(0)])
    Path("cut.gz").write_bytes(gzip.compress("".join(f"{line(n % 60)}\n" for n in range(99)).encode())[:-20])
    for name, text in {"broken": "[api", "empty": "", "wrong": 'api = "10/month"', "keyed": KEYED}.items():
        Path(f"{name}.toml").write_text(text)
    Path("empty.log").touch()
    Path("timeless.json").write_text('{"remote_addr": "192.0.2.1", "method": "GET", "path": "/"}\n')
    with pytest.raises(CommandError, match=error):
        run(*words)


REQUEST = "GET /a%20b/?q=1 HTTP/1.1"
COMMON = f'203.0.113.9 - ann [21/Nov/2025:05:40:00 +0100] "{REQUEST}" 200 12'
CADDY = {
    "ts": START / SECOND,
    "request": {"client_ip": "203.0.113.9", "method": "GET", "uri": "/a%20b/?q=1", "host": "a.example",
                "headers": {"User-Agent": ["curl"]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        (COMMON, None),
        (f'{COMMON} "-" "curl \\"x\\""', 'curl "x"'),
        (json.dumps(CADDY), "curl"),
        (f'{{"time": "2025-11-21T04:40:00Z", "ip": "203.0.113.9", "request": "{REQUEST}"}}', None),
        ('{"time": 1763700000, "ip": "203.0.113.9", "method": "GET", "path": "/a%20b/", "query": "?q=1"}', None),
    ],
)
def test_a_format_is_read(text: str, agent: str | None) -> None:
    log_format = find_format([text])
    entry = log_format.read(text)
    assert entry[:4] == (START, "GET", "/a b/", "q=1")
    assert (entry.meta["REMOTE_ADDR"], entry.meta.get("HTTP_USER_AGENT")) == ("203.0.113.9", agent)
    assert ("header:user-agent" in log_format.fields) == (agent is not None)


@pytest.mark.parametrize("fields", [{}, {"query": ""}, {"query": "?"}, {"query": "-"}], ids=repr)
def test_a_line_without_a_query_has_an_empty_one(fields: dict[str, str]) -> None:
    text = json.dumps({"time": 1_763_700_000, "ip": "203.0.113.9", "method": "GET", "path": "/a/", **fields})

    assert find_format([text]).read(text).query == ""


def test_the_query_in_a_path_comes_before_a_field_of_its_own() -> None:
    text = json.dumps({"time": 1_763_700_000, "ip": "203.0.113.9", "method": "GET", "path": "/a/?q=1", "query": "q=2"})

    assert find_format([text]).read(text).query == "q=1"


@pytest.mark.parametrize(
    "text",
    [f'{COMMON} "-" "curl"', f'{{"time": 1763700000, "ip": "203.0.113.9", "request": "{REQUEST}", "referer": ""}}'],
    ids=["combined", "JSON"],
)
def test_an_empty_header_is_none(text: str) -> None:
    assert "HTTP_REFERER" not in find_format([text]).read(text).meta


WHOLE = {"time": "2025-11-21T04:40:00Z", "ip": "203.0.113.9", "method": "GET", "path": "/a/", "query": "q=1"}
NAMES = {
    "time": ["time", "@timestamp", "timestamp", "ts", "msec", "time_iso8601", "time_local"],
    "ip": ["remote_addr", "client_ip", "remote_ip", "ip", "clientip", "Client-IP", "client.ip"],
    "method": ["method", "request_method", "verb", "request.method"],
    "path": ["request_uri", "uri", "url", "target", "path", "http.url"],
    "query": ["query", "query_string", "args"],
}


def without(field: str) -> dict[str, str]:
    return {name: value for name, value in WHOLE.items() if name != field}


@pytest.mark.parametrize(("field", "name"), [(field, name) for field in NAMES for name in NAMES[field]])
def test_a_field_of_json_may_have_any_usual_name(field: str, name: str) -> None:
    text = json.dumps({**without(field), name: WHOLE[field]})

    entry = find_format([text]).read(text)

    assert (*entry[:4], entry.meta["REMOTE_ADDR"]) == (START, "GET", "/a/", "q=1", "203.0.113.9")


@pytest.mark.parametrize(
    ("name", "meta"),
    [
        ("host", "HTTP_HOST"), ("http_host", "HTTP_HOST"), ("vhost", "HTTP_HOST"),
        ("x_forwarded_for", "HTTP_X_FORWARDED_FOR"), ("xff", "HTTP_X_FORWARDED_FOR"),
        ("http_x_forwarded_for", "HTTP_X_FORWARDED_FOR"), ("user_agent", "HTTP_USER_AGENT"),
        ("http_user_agent", "HTTP_USER_AGENT"), ("referer", "HTTP_REFERER"), ("http_x_api_key", "HTTP_X_API_KEY"),
        ("cookie_sid", "cookie:sid"), ("request.headers.X-Api-Key", "HTTP_X_API_KEY"),
    ],
)  # fmt: skip
def test_a_header_of_json_is_read_by_its_name(name: str, meta: str) -> None:
    text = json.dumps({**WHOLE, name: "x"})

    assert find_format([text]).read(text).meta == {"REMOTE_ADDR": "203.0.113.9", meta: "x"}


@pytest.mark.parametrize(
    ("first", "others"),
    [
        pytest.param({"remote_addr": "203.0.113.9"}, {"ip": "10.0.0.1", "client_ip": "10.0.0.2"}, id="the better name"),
        pytest.param({"ip": "203.0.113.9"}, {"peer": {"remote_addr": "10.0.0.1"}}, id="the one at the top"),
        pytest.param({"ip": "203.0.113.9"}, {"peer": {"ip": "10.0.0.1"}}, id="of one name, the one at the top"),
        pytest.param({"peer": {"ip": "203.0.113.9"}}, {"a": {"b": {"ip": "10.0.0.1"}}}, id="the one nearer to the top"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["written first", "written last"])
def test_of_two_fields_of_json_with_one_meaning_one_counts(
    first: dict[str, Any], others: dict[str, Any], is_first: bool
) -> None:
    both = {**first, **others} if is_first else {**others, **first}
    text = json.dumps({**without("ip"), **both})

    assert find_format([text]).read(text).meta["REMOTE_ADDR"] == "203.0.113.9"


@pytest.mark.parametrize("other", ["http_user_agent", "headers.User-Agent"])
@pytest.mark.parametrize("is_first", [True, False], ids=["written first", "written last"])
def test_a_field_of_the_server_comes_before_a_header_of_its_meaning(other: str, is_first: bool) -> None:
    both = {"user_agent": "curl", other: "x"} if is_first else {other: "x", "user_agent": "curl"}
    text = json.dumps({**WHOLE, **both})

    assert find_format([text]).read(text).meta["HTTP_USER_AGENT"] == "curl"


@pytest.mark.parametrize("other", ["vhost", "http_host", "headers.host"])
def test_the_host_of_the_server_is_the_only_host_of_a_line(other: str) -> None:
    text = json.dumps({other: "b.example", **WHOLE, "host": "a.example"})

    log_format = find_format([text])

    assert "header:host" not in log_format.fields
    assert log_format.read(text).meta["HTTP_HOST"] == "a.example"


def test_the_headers_of_a_nested_response_are_left_out() -> None:
    text = json.dumps({**WHOLE, "http": {"response": {"headers": {"X-Api-Key": "x"}}}})

    assert find_format([text]).read(text).meta == {"REMOTE_ADDR": "203.0.113.9"}


@pytest.mark.parametrize("begins", ["\n", " \n\n", "  "], ids=["a blank line", "two", "blanks before the object"])
def test_blanks_at_the_beginning_do_not_hide_the_format_of_json(begins: str) -> None:
    text = f"{begins}{json.dumps(WHOLE)}"

    assert find_format(text.split("\n")).name == "JSON"


@pytest.mark.parametrize("place", [0, 2, 4], ids=["the first", "one in between", "the last"])
def test_a_field_that_only_one_line_has_is_read(place: int) -> None:
    lines, one = [json.dumps(WHOLE), "broken {"] * 2, json.dumps({**WHOLE, "http_x_api_key": "x"})
    lines.insert(place, one)

    assert find_format(lines).read(one).meta["HTTP_X_API_KEY"] == "x"


@pytest.mark.parametrize(
    ("text", "value"),
    [('["curl", "wget"]', "curl"), ("[]", "[]"), ("null", None), ("0", "0"), ("false", "False")],
    ids=["a list", "an empty list", "null", "zero", "false"],
)
def test_a_header_of_json_that_is_not_a_string_is_read(text: str, value: str | None) -> None:
    line = f'{json.dumps(WHOLE)[:-1]}, "user_agent": {text}}}'

    assert find_format([line]).read(line).meta.get("HTTP_USER_AGENT") == value


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        pytest.param({"time": "", "method": "GET"}, "path. Name it 'request_uri'", id="no path"),
        pytest.param({"time": "", "path": "/"}, "method. Name it 'method'", id="no method"),
        pytest.param({"request": "GET / HTTP/1.1"}, "time. Name it 'time'", id="no time"),
    ],
)
def test_a_log_of_json_without_a_request_is_refused(fields: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^The JSON of the log has no {missing} in the log"):
        find_format([json.dumps(fields)])


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("GET /a/ HTTP/1.1", "/a/"), ("GET /a/", "/a/"), ("GET http://a.example/a/ HTTP/1.0", "/a/"),
        ("GET https://a.example:8443/a/?q HTTP/2", "/a/"), ("PROPFIND /a/ HTTP/1.1", "/a/"),
        ("GET /a%20b/ HTTP/1.1", "/a b/"), ("GET /%C3%A4/ HTTP/1.1", "/ä/"), ("GET /ä/ HTTP/1.1", "/ä/"),
        ("GET /%FF/ HTTP/1.1", "/%FF/"), ("GET /\udcff/ HTTP/1.1", "/%FF/"),
        ("GET /a HTTP/1.1 HTTP/1.1", "/a HTTP/1.1"),
    ],
)  # fmt: skip
def test_the_path_of_a_request_is_decoded_as_django_does(target: str, path: str) -> None:
    text = f'203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "{target}" 200 12'

    assert find_format([text]).read(text).path == path


@pytest.mark.parametrize(
    ("logged", "path"),
    [
        pytest.param(r"/a\x22b/", '/a"b/', id="a quote by its number"),
        pytest.param(r"/a\"b/", '/a"b/', id="a quote"),
        pytest.param(r"/a\\b/", "/a\\b/", id="a backslash"),
        pytest.param(r"/\xC3\xa4/", "/ä/", id="a letter of two bytes"),
        pytest.param(r"/a\tb/", r"/a\tb/", id="another escape"),
        pytest.param("/\\x41\udcff/", "/A%FF/", id="beside a byte that is not UTF-8"),
    ],
)
def test_what_a_server_has_escaped_is_read_as_it_was(logged: str, path: str) -> None:
    text = f'203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "GET {logged} HTTP/1.1" 200 12'

    assert find_format([text]).read(text).path == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[]", "it is not a JSON object", id="a list"),
        pytest.param("{", "it is not a JSON object", id="the beginning of an object"),
        pytest.param('{"time": "1763700000", "request": "-"}', "it has no request", id="no request"),
        pytest.param('{"time": "1763700000", "request": "GET /\\ud800"}', "its path is not a string", id="no path"),
    ],
)
def test_a_line_of_json_says_why_it_cannot_be_read(text: str, reason: str) -> None:
    log_format = find_format(['{"time": "1763700000", "request": "GET / HTTP/1.1"}'])

    with pytest.raises(UnreadableLineError) as caught:
        log_format.read(text)

    assert str(caught.value) == reason


def test_of_a_log_of_an_unknown_format_sixty_characters_are_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_format(["x" * 61])

    assert caught.value.problem == f"The format of the log is unknown. It begins with '{'x' * 60}'."


@pytest.mark.parametrize("target", ["get / HTTP/1.1", "G / HTTP/1.1", "GET", "GET a HTTP/1.1", "-"])
def test_what_is_not_a_request_is_unreadable(target: str) -> None:
    text = f'203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "{target}" 200 12'

    with pytest.raises(UnreadableLineError, match="it has no request"):
        find_format([COMMON]).read(text)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        pytest.param([COMMON], "common", id="without headers"),
        pytest.param([f'{COMMON} "-" "curl"'], "combined", id="with headers"),
        pytest.param([COMMON, f'{COMMON} "-" "curl"'], "combined", id="headers in some lines"),
        pytest.param(["nonsense", COMMON], "common", id="after a line that cannot be read"),
        pytest.param([], "combined", id="an empty log"),
    ],
)
def test_the_first_lines_say_whether_a_log_has_headers(lines: list[str], name: str) -> None:
    found = find_format(lines)

    headers = {"header:referer", "header:user-agent"} if name == "combined" else set()
    assert (found.name, set(found.fields)) == (name, {"ip", "time", "request"} | headers)


@pytest.mark.parametrize("header", ["Timestamp", "Time", "Ts", "Client-Ip", "Method", "Uri", "Host", "X.ts"])
def test_a_header_of_the_client_is_not_a_field_of_the_server(header: str) -> None:
    chosen = {**CADDY, "request": {**CADDY["request"], "headers": {"User-Agent": ["curl"], header: ["1"]}}}  # type: ignore[dict-item]
    text = json.dumps({**chosen, "resp_headers": {"Ts": ["2"], "User-Agent": ["another"]}})
    entry = find_format([text]).read(text)
    assert entry[:4] == (START, "GET", "/a b/", "q=1")
    found = [entry.meta[name] for name in ("REMOTE_ADDR", "HTTP_USER_AGENT", "HTTP_HOST")]
    assert found == ["203.0.113.9", "curl", "a.example"]


@pytest.mark.parametrize(
    "user",
    ["ann b", "[", "[21/Nov/2020:04:40:00 +0000]", r"a\x22b", r"a\"b", "[21/Nov/2020:04:40:00 +0000] \\"],
)
def test_a_user_name_of_any_form_leaves_a_line_readable(user: str) -> None:
    text = COMMON.replace(" - - ", f" - {user} ")
    entry = find_format([COMMON]).read(text)
    assert (entry[:4], entry.meta["REMOTE_ADDR"]) == ((START, "GET", "/a b/", "q=1"), "203.0.113.9")


def test_a_time_that_the_clock_shows_twice_follows_the_line_before(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    clock = [*(f"02:{minute:02}" for minute in range(60)), *(f"02:{minute:02}" for minute in range(60)), "03:00"]
    lines = [json.dumps(JSON | {"time": f"2026-10-25T{time}:00"}) for time in clock]
    rules = RuleSet(read_rules({"all": {"rate": "5/m", "match": "/"}}, "rules"), frozenset({"ip"}))

    traffic = read_traffic(lines, find_format(lines), rules)

    minutes = [(time - traffic.times[0]) // (60 * SECOND) for time in traffic.times]
    assert minutes == list(range(121))


def test_a_time_that_the_clock_shows_twice_may_be_a_little_before_the_last_one(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"

    assert read_time("2026-10-25T02:10:00", read_time("2026-10-25T00:20:00Z")) == read_time("2026-10-25T00:10:00Z")


def test_the_line_before_says_which_time_a_clock_means_though_a_later_one_came_first(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    lines = [json.dumps(JSON | {"time": f"2026-10-25T{time}:00"}) for time in ("12:00", "01:30", "02:10")]
    rules = RuleSet(read_rules({"all": {"rate": "5/m", "match": "/"}}, "rules"), frozenset({"ip"}))

    traffic = read_traffic(lines, find_format(lines), rules)

    assert traffic.times[1] - traffic.times[0] == 40 * 60 * SECOND


def test_a_line_of_blanks_is_not_counted_as_unreadable() -> None:
    _, traffic = read([" \t\n", line(0)])

    assert (traffic.lines, traffic.requests, traffic.unreadable) == (2, 1, 0)


def test_a_site_without_urls_replays_the_rules_of_its_settings(settings: Any) -> None:
    settings.ROOT_URLCONF = None

    _, traffic = read([line(0)], {"all": {"rate": "1/m", "match": "/"}})

    assert (len(traffic.plans), traffic.unreadable) == (1, 0)


def test_without_a_trusted_proxy_the_header_of_proxies_is_as_it_was_logged() -> None:
    lines = [json.dumps(JSON | {"ip": f"192.0.2.{n}", "xff": "203.0.113.9"}) for n in (1, 2)]

    _, traffic = read(lines, {"proxied": {"rate": "1/m", "key": "header:X-Forwarded-For", "match": "/"}})

    assert len(traffic.plans) == 1


@pytest.mark.parametrize(
    ("key", "field"),
    [("header: User-Agent", "header:user-agent"), ("cookie: sid", "cookie:sid")],
    ids=["a header", "a cookie"],
)
def test_a_key_with_a_blank_needs_the_same_field_of_a_log(key: str, field: str) -> None:
    assert replay.why_left_out(Rule.make("r", "5/m", key=key), frozenset({field})) == ""


@pytest.mark.parametrize("before", ["2026-03-28T12:00", "2026-03-29T12:00"], ids=["a day before", "hours after"])
def test_a_time_that_the_clock_skips_is_that_of_a_clock_not_yet_set_forward(before: str, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"

    assert read_time("2026-03-29T02:30:00", read_time(before)) == read_time("2026-03-29T01:30:00Z")


def test_a_line_without_a_rule_says_which_time_a_clock_means_that_shows_it_twice(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    times = ["02:10", "02:59", "02:10"]
    paths = ["/", "/without/a/rule/", "/"]
    lines = [
        json.dumps(JSON | {"time": f"2026-10-25T{time}:00", "request": f"GET {path} HTTP/1.1"})
        for time, path in zip(times, paths, strict=True)
    ]
    rules = RuleSet(
        read_rules({"all": {"rate": "5/m", "match": "/", "exclude": "/without/"}}, "rules"), frozenset({"ip"})
    )

    traffic = read_traffic(lines, find_format(lines), rules)

    assert traffic.times[1] - traffic.times[0] == 3_600 * SECOND


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"ip": "nowhere"},
            "The client's IP is unknown: REMOTE_ADDR is 'nowhere', and no trusted proxy sent an address.",
            id="without an address",
        ),
        pytest.param(
            {"request": f"GET /?{'&' * 2_000} HTTP/1.1"},
            "The number of GET/POST parameters exceeded settings.DATA_UPLOAD_MAX_NUMBER_FIELDS.",
            id="with too many fields",
        ),
    ],
)
def test_a_line_that_a_site_could_not_answer_is_unreadable(fields: dict[str, str], reason: str) -> None:
    text = json.dumps(JSON | fields)
    log_format = find_format([text])
    rules = {"all": {"rate": "5/m", "key": ("get:q", "ip"), "match": "/"}}

    traffic = read_traffic(["", text], log_format, RuleSet(read_rules(rules, "rules"), log_format.fields))

    assert traffic.shown == [Unreadable(2, reason, text[:500])]


@pytest.mark.parametrize(
    "time", ["20260921141320", "20260921141", "12345678901234567", "01/Jan/99999999999:00:00:00 +0000"]
)
def test_a_number_that_is_not_a_time_since_1970_is_unreadable(time: str) -> None:
    with pytest.raises(UnreadableLineError) as caught:
        read_time(time)

    assert str(caught.value) == f"'{time}' is not a time, such as 21/Nov/2026:04:40:00 +0000"


@pytest.mark.parametrize("marked", ["access.log", "rules.toml"])
def test_a_file_may_begin_with_a_byte_order_mark(marked: str) -> None:
    Path("access.log").write_bytes(COMMON.encode())
    Path("rules.toml").write_bytes(b'all = {rate = "5/m", match = "/"}')
    Path(marked).write_bytes(BOM_UTF8 + Path(marked).read_bytes())

    assert run_json("access.log", "--rules", "rules.toml")["rules"]["all"]["requests"] == 1


def test_each_of_several_logs_may_begin_with_a_byte_order_mark() -> None:
    for name in ("1.log", "2.log"):
        Path(name).write_bytes(BOM_UTF8 + COMMON.encode())

    assert run_json("1.log", "2.log", "--rate", "5/m")["log"]["requests"] == 2


@pytest.mark.parametrize(
    "time",
    [
        "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "5138-11-16T09:46:40Z", "01/Jan/1969:00:00:00 +0000",
        "000000000", "0000000000.0",
    ],
)  # fmt: skip
def test_a_time_that_no_server_can_have_logged_is_unreadable(time: str) -> None:
    with pytest.raises(UnreadableLineError) as caught:
        read_time(time)

    assert str(caught.value) == f"its time is before 1970 or too far in the future: {time!r}"


@pytest.mark.parametrize(
    ("time", "microseconds"),
    [("1970-01-01T00:00:00.000001Z", 1), ("5138-11-16T09:46:39.999999Z", 10**17 - 1)],
    ids=["the first", "the last"],
)
def test_the_first_or_last_time_that_can_be_counted_is_read(time: str, microseconds: int) -> None:
    assert read_time(time) == microseconds


@pytest.mark.parametrize(
    "text",
    [
        "1763700000.123",
        "1763700000123",
        "1763700000123000",
        "1763700000123000000",
        "1763700000,123",
        "2025-11-21T05:40:00.123+01:00",
        "2025-11-21 04:40:00,123",
    ],
)
def test_a_time_is_read_to_the_microsecond(text: str) -> None:
    assert read_time(text) == START + 123_000


JSON = {"time": "1763700000.1", "ip": "203.0.113.9", "host": "a.example", "request": "GET / HTTP/1.1"}
AS_KEYS = {
    "query": {"rate": "5/m", "key": "get:q", "match": "/"},
    "header": {"rate": "5/m", "key": "header:X-Key", "match": "/"},
    "host": {"rate": "5/day", "algorithm": "calendar", "match": "host:*.example"},
}


def read_line(text: str, first: str) -> Traffic:
    """Read a line of a log that begins with another one, and decide it."""
    log_format = find_format([first])
    replayed = RuleSet(read_rules(AS_KEYS if first.startswith("{") else {}, "rules"), log_format.fields)
    traffic = read_traffic([text], log_format, replayed)
    find_refusals(replayed, traffic)
    return traffic


@pytest.mark.parametrize(
    "text",
    [
        *(json.dumps(JSON | {"time": time}) for time in ("", "today", "40/Nov/2025:04:40", "0001-01-01T00:00+05:00")),
        *(json.dumps(JSON | {"request": f"GET {path} HTTP/1.1"}) for path in (
            "http://[x", f"/?{'&' * 2000}q=1", "-", "/\ud800?",
        )),
        json.dumps(JSON | {"time": "12", "agent": "x" * 5_000}), "{", "[]", "a:" * 45_000,
        '{"a":' * 990 + "1" + "}" * 990, "203.0.113.9 - " + " [" * 40_000, "203.0.113.9 - - " + " " * 90_000,
        '203.0.113.9 - - [21/Nov/2025:04:40:00 +0000] "' + '" 1 ' * 20_000,
    ],
    ids=lambda text: text[:40].strip(),
)  # fmt: skip
def test_of_a_line_that_is_not_a_request_only_the_beginning_is_shown(text: str) -> None:
    """Even a long line takes no more than a look at each character."""
    traffic = read_line(text, json.dumps(JSON) if text.startswith(("{", "[]")) else COMMON)

    assert (traffic.requests, traffic.unreadable, len(traffic.shown)) == (0, 1, 1)
    assert traffic.shown[0].text == text[:500]


@given(st.text(max_size=80), st.sampled_from([line(0), json.dumps(JSON)]))
@example(json.dumps(JSON | {"host": None, "http_x_key": "\udcff\ud800"}), json.dumps(JSON | {"http_x_key": "k"}))
@inputs(100)
def test_no_line_stops_the_reader(text: str, first: str) -> None:
    traffic = read_line(text, first)
    assert traffic.requests + traffic.unreadable <= traffic.lines


def test_the_page_shows_what_the_command_prints(settings: Any) -> None:
    settings.ROOT_URLCONF = ()
    shown = blocks("docs/testing.md")
    Path("drafts.toml").write_text(next(text for language, text in shown if language == "toml"))
    moments = [(at / 2, f"203.0.113.{at % 40}", "/search/") for at in range(900)]
    moments += [(at, "198.51.100.7", "/search/") for at in range(0, 600, 2)]
    moments += [(at, "198.51.100.8", "/") for at in range(100)]
    lines = [line(int(second), ip=ip, path=path) for second, ip, path in sorted(moments)]
    Path("access.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    log([json.dumps({"ip": "203.0.113.9", "time": START, "method": "GET", "path": "/search/"})], "access.json")
    command = re.compile(r"^\$ manage\.py quota_replay (.*)\n((?:(?!\$).*\n)*)", re.MULTILINE)
    calls = {words: printed.strip() for _, text in shown for words, printed in command.findall(text)}

    prints = {words: run(*shlex.split(words)).strip() for words in calls}

    assert {words: prints[words] for words in calls if calls[words]} == {w: calls[w] for w in calls if calls[w]}
