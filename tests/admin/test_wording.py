"""What the pages call an algorithm and a subject."""

import pytest

from django_quota.admin.wording import algorithm_in_words, ban_in_words, breakable, subject_in_words

DIGEST = "0123456789abcdef" * 2


@pytest.mark.parametrize("name", ["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"])
def test_an_algorithm_has_its_own_name(name: str) -> None:
    assert str(algorithm_in_words(name)) == name.replace("_", " ")


@pytest.mark.parametrize("kind", ["header.X-Api-Key", "cookie.device", "get.q", "post.phone", "json.phone", "session"])
def test_a_digest_is_cut(kind: str) -> None:
    assert subject_in_words(f"{kind}:{DIGEST}", {}) == f"{kind}:012345…"


def test_the_digest_of_a_part_is_cut() -> None:
    assert subject_in_words(f"ip:203.0.113.9+post.phone:{DIGEST}", {}) == "ip:203.0.113.9+post.phone:012345…"


def test_the_digest_of_a_long_subject_is_cut() -> None:
    assert subject_in_words(f"org:long~{DIGEST * 2}", {}) == "org:long~012345…"


def test_what_only_looks_like_a_digest_is_shown_whole() -> None:
    assert subject_in_words(f"org:{DIGEST}", {}) == f"org:{DIGEST}"


@pytest.mark.parametrize(
    ("level", "words"),
    [(1, "first ban"), (2, "second ban"), (5, "fifth ban"), (6, "ban number 6"), (70, "ban number 70")],
)
def test_a_ban_says_which_it_is(level: int, words: str) -> None:
    assert ban_in_words(level) == words


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("shop.views.api_search", "shop.<wbr>views.<wbr>api_<wbr>search", id="a path"),
        pytest.param("__api_", "__<wbr>api_", id="at the ends"),
        pytest.param("a.<b>", "a.<wbr>&lt;b&gt;", id="markup"),
    ],
)
def test_the_name_of_a_rule_may_break(name: str, shown: str) -> None:
    assert breakable(name) == shown
