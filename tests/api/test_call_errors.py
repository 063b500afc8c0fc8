"""What a call says of a mistake, word by word: what is wrong, and what to write instead."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.http import HttpResponse

from django_quota import (
    Entry,
    Rule,
    ban,
    check,
    check_all,
    counter,
    once,
    peek,
    raise_limit,
    refund,
    reset,
    unban,
)
from django_quota.exceptions import RuleError
from django_quota.features.request_end import at_stream_end

USER = "user:1"
COSTLY = Rule.make("costly", "9/m", cost=lambda request: 1)
DYNAMIC = Rule.make("dynamic", lambda request: "5/m")
PLANS = Rule.make("plans", {"free": "5/m", "pro": "9/m"}, tier=lambda request: "free")
VALUES = Rule.make("values", "9/m", distinct=True)
CREDITS = counter("credits", ttl=60)

SUBJECT_HINT = "Use a string such as 'user:42', or a user."
ENTRIES_HINT = "Use, for example, [('rpm', user), ('tpm', user, 900)]."
MANY = [("search", f"user:{number}") for number in range(1_001)]


@pytest.fixture(autouse=True)
def rules(memory_store: None, settings: Any) -> None:
    rules = {"search": "2/m", "bans": {"rate": "2/m", "ban": {"after": "1000/m", "for": "10m"}}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}


def says(call: Callable[[], object], text: str, name: str) -> Any:
    return pytest.param(call, text, id=name)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        says(
            lambda: check("1/m", USER, 0),
            "cost=0 of rule '1/m' takes nothing. To look without counting, use peek() or apeek().",
            "a cost of nothing",
        ),
        says(
            lambda: check("1/m", cast("Any", 7)),
            "7 is not a subject. Use a string such as 'ip:203.0.113.9', a user or a request.",
            "a number as a subject",
        ),
        says(
            lambda: check("1/m", SimpleNamespace(_request="GET /")),
            "namespace(_request='GET /') is not a subject. Use a string such as 'ip:203.0.113.9', a user or a request.",
            "a wrapper of something that is not a request of Django",
        ),
        says(
            lambda: peek(cast("Any", CREDITS), USER),
            f"{CREDITS!r} is not a rule or a rate. Use its take(), or make it an entry of check_all().",
            "a counter as a rule",
        ),
        says(
            lambda: check(COSTLY, USER),
            "The cost of rule 'costly' is a function of the request: pass cost= here.",
            "a cost that only a request knows",
        ),
        says(
            lambda: check_all([Entry(CREDITS, USER, 1, tier="")]),
            f"Counter 'credits' has no tier ''. {ENTRIES_HINT}",
            "a counter with an empty tier",
        ),
        says(
            lambda: check_all([Entry(PLANS, USER, tier="")]),
            "Rule 'plans' has no tier ''. Known: 'free', 'pro'.",
            "an entry with an empty tier",
        ),
        says(
            lambda: check(DYNAMIC, USER),
            "The rates of rule 'dynamic' are functions of the request: pass the request as subject.",
            "a rate that only a request knows",
        ),
        says(
            lambda: check(PLANS, USER),
            "The tier of rule 'plans' is a function of the request: pass the request as subject, or tier=. "
            "Known: 'free', 'pro'.",
            "a tier that only a request knows",
        ),
        says(
            lambda: check(VALUES, USER),
            "Rule 'values' counts different values: check() and peek() take the value as value=. reset() forgets all "
            "of them; refund() and reserve() do not work with such a rule.",
            "no value",
        ),
        says(
            lambda: refund(VALUES, USER, 0),
            "Rule 'values' counts different values: refund() cannot take one back; reset() forgets all.",
            "a refund of a value",
        ),
        says(
            lambda: check(VALUES, USER, value="a", force=True),
            "Rule 'values' counts different values: it cannot be forced.",
            "a value by force",
        ),
        says(lambda: check_all([]), f"There are no entries. {ENTRIES_HINT}", "no entries"),
        says(lambda: check_all(cast("Any", "rpm")), f"'rpm' is not a list of entries. {ENTRIES_HINT}", "a string"),
        says(
            lambda: check_all([("search", USER), cast("Any", "tpm")]),
            "'tpm' is not (rule, subject), (rule, subject, cost) or an Entry, which may also name a tier. "
            + ENTRIES_HINT,
            "a string as an entry",
        ),
        says(
            lambda: check_all(MANY),
            "There are more than 1,000 entries. Split them into several calls.",
            "too many entries",
        ),
        says(
            lambda: check_all([("search", USER)] * 2),
            "Rule 'search' is listed twice for user:1. Give it once, with the whole cost.",
            "a rule twice",
        ),
        says(
            lambda: check_all([(CREDITS, USER, 5)] * 2),
            "Counter 'credits' is listed twice for user:1. Give it once, with the whole cost.",
            "a counter twice",
        ),
        says(
            lambda: check_all([Entry(CREDITS, USER, 1, "pro")]),
            f"Counter 'credits' has no tier 'pro'. {ENTRIES_HINT}",
            "a tier of a counter",
        ),
        says(
            lambda: check_all([(CREDITS, 7)]),
            f"7 is not a subject of a counter. {SUBJECT_HINT}",
            "a number as a subject of a counter",
        ),
        says(lambda: reset("*", 7), f"7 is not a subject of a reset of all rules. {SUBJECT_HINT}", "a reset of all"),
        says(lambda: reset("search", 7), f"7 is not a subject of a reset. {SUBJECT_HINT}", "a reset of a number"),
        says(
            lambda: reset("*", USER, tier="pro"),
            "tier= is for one rule, and '*' stands for all rules.",
            "a reset of all rules with an option",
        ),
        says(lambda: ban("bans", 7, 60), f"7 is not a subject of a ban. {SUBJECT_HINT}", "a ban of a number"),
        says(lambda: unban("*", 7), f"7 is not a subject of a ban. {SUBJECT_HINT}", "the bans of a number"),
        says(lambda: unban("bans", 7), f"7 is not a subject of a ban. {SUBJECT_HINT}", "a ban of a number to lift"),
        says(
            lambda: ban("bans", USER, 60, reason=cast("Any", 7)),
            "reason=7 is not a string of at most 500 characters.",
            "a number as a reason",
        ),
        says(
            lambda: ban("bans", USER, 60, by=7),
            "by=7 is not a saved user, or a name of at most 200 characters.",
            "a number as a name",
        ),
        says(
            lambda: raise_limit("search", USER, 0),
            "units=0 is not a whole number from 1 to 1000000000000. Use, for example, 500_000.",
            "no units",
        ),
        says(
            lambda: raise_limit("search", 7, 5),
            f"7 is not a subject of raise_limit(). {SUBJECT_HINT}",
            "a number as a subject of more units",
        ),
        says(lambda: once("", 1), "'' is not a name for the values. Use, for example, 'payment'.", "no name"),
        says(
            lambda: once("event", cast("Any", 1.5)),
            "value= is float. Use a string, bytes or a whole number.",
            "a float as a value",
        ),
        says(
            lambda: once("event", 1, ttl=0),
            "ttl=0 is not a duration above 0 and up to 366 days. Use, for example, 30 (seconds), '10m' or "
            "timedelta(days=1).",
            "a value that is not remembered",
        ),
        says(
            lambda: ban("bans", USER, 0),
            "duration=0 is not a duration above 0 and up to 366 days. Use, for example, 30 (seconds), '10m' or "
            "timedelta(days=1).",
            "a ban that does not last",
        ),
        says(
            lambda: at_stream_end(HttpResponse(), cast("Any", None)),
            "HttpResponse is not a stream. Call settle() when the cost is known.",
            "a response that is not a stream",
        ),
        says(
            lambda: at_stream_end(5, cast("Any", None)),
            "5 is not a stream. Use a StreamingHttpResponse, or a sync or async iterator.",
            "a number that is not a stream",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write(call: Callable[[], object], text: str) -> None:
    with pytest.raises(RuleError) as caught:
        call()

    assert str(caught.value) == text
