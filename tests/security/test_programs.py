"""The values of an event reach a program unchanged, one argument each, or not at all."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.management.programs import PLACEHOLDERS, NoAddressError, Program, UnfitError, values_of
from django_quota.services.event_stream import Event
from tests.support.inputs import inputs

EVENT = Event("1763700000000-0", "banned", "login", "ip:203.0.113.9", 1_763_700_060_000_000, 1, 5, 0)
ODD = [
    "-rf",
    "@set",
    "--",
    "{subject}",
    "{rule}",
    "$(id)",
    "`id`",
    ";id",
    "|id",
    "\n",
    "a b",
    "'",
    '"',
    "\\",
    "*",
    "\0",
    "",
    "\ud800",
]
TEXTS = st.text(st.characters(), max_size=40) | st.sampled_from(ODD)
PLACES = st.sampled_from([f"{{{name}}}" for name in PLACEHOLDERS])
WORDS = st.lists(TEXTS | PLACES | st.text("{}rulesbjct -", max_size=12))


@inputs(1_000)
@example("login", "{rule}", ["{subject}"])
@given(TEXTS | st.none(), TEXTS | st.none(), WORDS)
def test_each_argument_stays_one_and_is_no_option(rule: str | None, subject: str | None, words: list[str]) -> None:
    event = replace(EVENT, rule=rule, subject=subject)
    try:
        filled = Program(["true", *words], 5).arguments(values_of(event))
    except (UnfitError, NoAddressError):
        return
    assert len(filled) == len(words) + 1
    assert filled[0] == b"true"
    assert not any("\0" in each for each in (rule or "", subject or ""))
    for word, argument in zip(words, filled[1:], strict=True):
        assert word.startswith(("-", "@")) or not argument.startswith((b"-", b"@"))
        if "{" not in word:
            assert argument == word.encode(errors="surrogatepass")
        if word == "{subject}":
            assert argument == (subject or "").encode(errors="surrogatepass")


@inputs(1_000)
@given(
    TEXTS | st.builds("ip:{}".format, TEXTS | st.ip_addresses().map(str) | st.text("0123456789abcdef.:/%", max_size=20))
)
def test_an_ip_is_nothing_but_an_address(subject: str) -> None:
    try:
        (_, filled) = Program(["true", "{ip}"], 5).arguments(values_of(replace(EVENT, subject=subject)))
    except (UnfitError, NoAddressError):
        return
    address = filled.decode("ascii")
    assert f"ip:{address}" == subject
    assert str(ip_network(address, strict=True)) == (address if ":" in address else f"{address}/32")


@pytest.mark.parametrize("length", [100_000, 200_000, 3_000_000])
def test_more_than_the_system_takes_is_a_reported_failure(length: int) -> None:
    found = Program(["true", "x" * length], 30).run(EVENT)
    assert found is None or found.startswith("it could not start: ")
    assert length < 3_000_000 or found


@pytest.mark.parametrize("field", ["rule", "subject"])
def test_a_null_byte_is_unfit_even_where_only_the_environment_would_hold_it(field: str) -> None:
    event = replace(EVENT, **{field: "a\0b"})  # type: ignore[arg-type]
    with pytest.raises(UnfitError, match="null byte"):
        Program(["true"], 5).run(event)


def test_the_environment_holds_each_value_as_it_is(tmp_path: Path) -> None:
    written = tmp_path / "written"
    event = replace(EVENT, subject="a:$(touch x)\n'\"`\ud800\udcff é", rule="() { :;}; touch x")
    script = f'printf \'%s|%s\' "$QUOTA_EVENT_SUBJECT" "$QUOTA_EVENT_RULE" > {shlex.quote(str(written))}'
    assert Program(["sh", "-c", script], 30).run(event) is None
    expected = f"{event.subject}|{event.rule}".encode(errors="surrogatepass")
    assert written.read_bytes() == expected
    assert os.listdir(tmp_path) == ["written"]  # noqa: PTH208
