"""What strangers send and operators mistype: a right answer or a clear error, never a traceback nor a shared bucket."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota import Rule, peek
from django_quota.adapters import decide
from django_quota.exceptions import QuotaError
from tests.support.calls import get
from tests.support.findings import SETTINGS
from tests.support.inputs import inputs
from tests.support.stores import caches

ANYTHING = st.text(max_size=40) | st.binary(max_size=20).map(lambda data: data.decode("latin-1"))


def header(text: str) -> str:
    """Return what a server makes of a header: one line of Latin-1."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1").replace("\r", " ").replace("\n", " ")


OPTIONS = [
    "key", "cost", "algorithm", "burst", "precision", "tz", "methods", "ban", "warn_at", "match", "exclude", "exempt",
    "tier", "distinct", "on_unavailable", "daily", "rate", "nmae",
]  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-5, 10**13) | st.floats()
VALUES = ANYTHING | SCALARS | st.lists(ANYTHING, max_size=3)
GIVEN = VALUES | st.dictionaries(ANYTHING, ANYTHING, max_size=2)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda rate, options: Rule.make("r", rate, **options), id="in code"),
        pytest.param(lambda rate, options: Rule.from_setting("r", {"rate": rate, **options}), id="in the settings"),
    ],
)
@inputs(500)
@given(rate=VALUES, options=st.dictionaries(st.sampled_from(OPTIONS), GIVEN, max_size=3))
def test_a_rule_is_made_or_refused_with_words(
    make: Callable[[Any, dict[str, Any]], Rule], rate: Any, options: dict[str, Any]
) -> None:
    said = "it is a rule"
    try:
        make(rate, options)
    except QuotaError as error:
        said = str(error)

    assert len(said) > 10


@inputs(150)
@given(st.dictionaries(st.sampled_from(SETTINGS), ANYTHING | SCALARS, max_size=4))
def test_a_request_under_odd_settings_is_answered_or_says_what_is_wrong(given_: dict[str, Any]) -> None:
    request = get()
    with override_settings(QUOTA={**given_, "STORE": "memory"}):
        said = "the request is answered, and there is no error"
        try:
            assert decide(request, Rule.make("r", "1/m")) is not None
            assert peek("1/m", request).allowed
        except QuotaError as error:
            said = str(error)
        assert len(said) > 20


@inputs(150)
@given(st.text(max_size=60), ANYTHING, ANYTHING, st.sampled_from(["GET", "POST", "OPTIONS", "PURGE", "X"]))
def test_any_request_is_answered_by_the_middleware(path: str, accept: str, host: str, method: str) -> None:
    rules = {"a": {"rate": "0/m", "match": ["/", "api:*", "host:*.example.com", "re:^/a+b"], "key": "path"}}
    sent: dict[str, Any] = {"HTTP_ACCEPT": header(accept), "HTTP_HOST": header(host), "REMOTE_ADDR": "192.0.2.1"}

    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}, ALLOWED_HOSTS=["*"]):
        client = Client(raise_request_exception=False)
        reply = client.generic(method, "/" + path.encode("utf-8", "surrogatepass").decode("latin-1"), **sent)

    assert reply.status_code in (400, 429)


COMMANDS = ["status", "reset", "override", "bans", "rules", "rollup", "sweep"]
KNOWN_WORDS = """user:1 ip:1.2.3.4 --json --rule --dry-run 10/m exempt blocked set list clear lift / --for 1d --reason
--limit search * --yes --count --since -1 --kind --budget-ms 0"""


@pytest.mark.usefixtures("database")
def test_whatever_words_a_command_gets_it_does_its_work_or_says_what_is_wrong(redis_server: Any, settings: Any) -> None:
    settings.CACHES = caches(redis_server)

    @inputs(500)
    @given(st.sampled_from(COMMANDS), st.lists(ANYTHING | st.sampled_from(KNOWN_WORDS.split()), max_size=5))
    def try_them(name: str, words: list[str]) -> None:
        assume(not any(word.startswith(("--ev", "--fo", "--set", "--py", "--tr", "-h", "--h")) for word in words))
        said: object = 0
        try:
            call_command(f"quota_{name}", *words, stdout=StringIO(), stderr=StringIO())
        except CommandError as error:
            said = str(error)
        except SystemExit as ended:
            said = ended.code
        assert said or said in (0, 1, 2)

    try_them()
