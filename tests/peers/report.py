"""The tables of docs/comparison.md."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from django_quota.testing import server_programs
from tests.benchmarks.processes import in_process, redis_over_tcp

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
BEGIN, END = "<!-- python -m tests.peers: begin -->\n", "<!-- python -m tests.peers: end -->"
TEN_THOUSAND = 10_000


def measure() -> dict[str, Any]:
    """Run all limiters, each part in a process of its own."""
    program = server_programs()[0]
    found: dict[str, Any] = in_process("tests.peers.shows:without_server")
    with redis_over_tcp(program) as url:
        found["visitors"] = in_process("tests.peers.shows:visitors", url)
    found["outage"] = [in_process("tests.peers.shows:outage", str(program), each) for each in (False, True)]
    return found


def tables(found: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    versions = found["versions"]

    sites = found["visitors"]
    plain, tolerant = found["outage"]
    rows = [
        ["a refusal", *(f"{each['status']}{_headers(each)}" for each in sites.values())],
        [
            "20 requests from 20 addresses of one IPv6 /64: answered",
            *(each["of_one_network"] for each in sites.values()),
        ],
        [
            "20 requests of one peer, another `X-Forwarded-For` each: answered",
            *(each["forging"] for each in sites.values()),
        ],
        ["five requests that `3/m` refuses, under `10/d` and `3/m`: left of the day", *map(_left, sites.values())],
        ["`Retry-After`, where 50 is right; is the client let in then?", *map(_wait, sites.values())],
        ["eleven requests to an async view", *map(_async, sites.values())],
        ["Redis has died: the view answers", *(plain[name] for name in sites)],
        ["the same, with the option for it", *(tolerant[name] for name in sites)],
    ]
    visits = _table(["under `10/m` by address", *(f"{name} {versions[name]}" for name in sites)], rows)
    months = found["month"]
    sizes = _table(
        ["", "`10/month` is", "lines of Python and Lua"],
        [[f"{name} {versions[name]}", months.get(name, "—"), _size(size)] for name, size in found["lines"].items()],
    )
    return f"{visits}\n\n{sizes}\n"


def write(text: str, page: Path = PAGE) -> None:
    """Write the tables between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def shown(page: Path = PAGE) -> str:
    """Return the tables that the page shows."""
    return page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def _size(lines: int) -> str:
    """Return a number of lines. Ours changes each day, so it is rounded down."""
    return f"{lines:,}" if lines < TEN_THOUSAND * 3 else f"more than {lines // TEN_THOUSAND}0,000"


def _headers(site: dict[str, Any]) -> str:
    names = [
        name
        for name, has in (
            ("`Retry-After`", site["retry_after"]),
            ("`RateLimit`", site["draft_headers"]),
            ("`X-RateLimit-*`", site["legacy_headers"]),
        )
        if has
    ]
    return "".join(f", {name}" for name in names)


def _left(site: dict[str, Any]) -> str:
    return f"{site['left']}" if "left" in site else "—"


def _wait(site: dict[str, Any]) -> str:
    wait = site.get("wait")
    if wait is None:
        return "none" if "wait" in site or not site["retry_after"] else "—"
    return f"{wait['told']}, {'yes' if wait['then'] else 'no'}"


def _async(site: dict[str, Any]) -> str:
    if "async" not in site:
        return "—"
    first, last = site["async"][0], site["async"][-1]
    return f"ten {first}, one {last}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)
