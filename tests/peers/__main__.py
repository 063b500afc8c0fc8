"""Run every limiter, and print what docs/comparison.md says of them. `--write` fills the page.

`python -m tests.peers`; it takes about a minute, and needs the packages of `pip install 'django-quota[bench]'`,
django-axes and Flask-Limiter.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from django_quota.testing import server_programs
from tests.benchmarks.processes import in_process, redis_over_tcp
from tests.support.pages import write_part

PAGE, PART = "docs/comparison.md", "python -m tests.peers"
TEN_THOUSAND = 10_000
HEADERS = {"retry_after": "`Retry-After`", "draft_headers": "`RateLimit`", "legacy_headers": "`X-RateLimit-*`"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE}")
    options = parser.parse_args()
    text = tables(measure())
    print(text)
    if options.write:
        write_part(PAGE, PART, text)


def measure() -> dict[str, Any]:
    """Run all limiters, each part in a process of its own."""
    program = server_programs()[0]
    found: dict[str, Any] = in_process("tests.peers.shows:without_server")
    with redis_over_tcp(program) as url:
        found["visitors"] = in_process("tests.peers.shows:visitors", url)
    found["outage"] = [in_process("tests.peers.shows:outage", str(program), each) for each in (False, True)]
    return found


def tables(found: dict[str, Any]) -> str:
    versions, sites, months = found["versions"], found["visitors"], found["month"]
    plain, tolerant = found["outage"]

    def of_each(what: str) -> list[object]:
        return [site.get(what, "—") for site in sites.values()]

    rows: list[list[object]] = [
        ["a refusal", *map(_refusal, sites.values())],
        ["20 requests from 20 addresses of one IPv6 /64: answered", *of_each("of_one_network")],
        ["20 requests of one peer, another `X-Forwarded-For` each: answered", *of_each("forging")],
        ["five requests that `3/m` refuses, under `10/d` and `3/m`: left of the day", *of_each("left")],
        ["`Retry-After`, where 50 is right; is the client let in then?", *map(_wait, sites.values())],
        ["eleven requests to an async view", *map(_async, sites.values())],
        ["Redis has died: the view answers", *(plain[name] for name in sites)],
        ["the same, with the option for it", *(tolerant[name] for name in sites)],
    ]
    visits = _table(["under `10/m` by address", *(f"{name} {versions[name]}" for name in sites)], rows)
    sizes = [[f"{name} {versions[name]}", months.get(name, "—"), _size(size)] for name, size in found["lines"].items()]
    return f"{visits}\n\n{_table(['', '`10/month` is', 'lines of Python and Lua'], sizes)}"


def _refusal(site: dict[str, Any]) -> str:
    return ", ".join([str(site["status"]), *(name for key, name in HEADERS.items() if site[key])])


def _wait(site: dict[str, Any]) -> str:
    wait = site.get("wait")
    if wait is None:
        return "none" if "wait" in site or not site["retry_after"] else "—"
    return f"{wait['told']}, {'yes' if wait['then'] else 'no'}"


def _async(site: dict[str, Any]) -> str:
    return f"ten {site['async'][0]}, one {site['async'][-1]}" if "async" in site else "—"


def _size(lines: int) -> str:
    """Return a number of lines. Ours changes each day, so it is rounded down."""
    return f"{lines:,}" if lines < TEN_THOUSAND * 3 else f"more than {lines // TEN_THOUSAND}0,000"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
