"""How the demo runs each scenario: the requests a real client sends, and the replies that are promised.

`demo` prints the result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic, sleep

from django_quota import counter
from example_project.client import Reply, Visitor
from example_project.initial_state import CREDITS, STOCK
from example_project.people import DEMO, DEMO_PRO
from example_project.runner import Site
from example_project.scenarios import Scenario
from example_project.sending import at_once, one_after_another


@dataclass
class Step:
    """Some requests of a scenario, and whether the replies are as promised."""

    scenario: Scenario
    name: str
    replies: list[Reply]
    promise: int | range
    """How many requests must be admitted."""
    declines: int = 0
    """How many requests the view itself must decline."""
    says: str = ""
    """What the refusals say; by default the body of the last one."""
    differences: list[str] = field(default_factory=list)
    """What differs from the promises."""

    def __post_init__(self) -> None:
        promised = self.promise if isinstance(self.promise, range) else [self.promise]
        self.expect(f"admitted of {len(self.replies)}", self.admitted, promised)
        self.expect(f"declined of {len(self.replies)}", len(self.declined), [self.declines])
        known = [*self.refusals, *self.declined]
        self.expect("other answers", [r.status for r in self.replies if not r.admitted and r not in known], [[]])
        if not self.scenario.at_once:
            since = self.replies[self.replies.index(self.refusals[0]) :] if self.refusals else []
            self.expect("admitted after a refusal", sum(reply.admitted for reply in since), [0])
        for reply in self.replies if self.scenario.tells_limits else self.refusals:
            self.expect("limits in RateLimit", len(reply.left) > 0 and "RateLimit-Policy" in reply.headers, [True])
        for refusal in self.refusals:
            self.expect("Retry-After of a refusal", refusal.retry_after > 0, [True])
            problem = str(refusal.said.get("type"))
            self.expect("the refusal's body", problem.rpartition("#")[2], [self.scenario.problem])
        for reply in self.declined:
            self.expect("why the view declined", bool(reply.said.get("detail")), [True])
        self.says = self.says or self._last_words()

    @property
    def admitted(self) -> int:
        """How many requests were admitted."""
        return sum(reply.admitted for reply in self.replies)

    @property
    def declined(self) -> list[Reply]:
        """The replies in which the view itself declined."""
        return [reply for reply in self.replies if reply.status == self.scenario.declines_with]

    @property
    def refusals(self) -> list[Reply]:
        """The replies in which a limit refused."""
        return [reply for reply in self.replies if reply.status == HTTPStatus.TOO_MANY_REQUESTS]

    def _last_words(self) -> str:
        """Return what the last refusal says, or the last reply in which the view declined."""
        if self.refusals:
            last = self.refusals[-1]
            return (
                f"{last.status}, Retry-After: {last.retry_after}\nRateLimit: {last.headers.get('RateLimit', '(none)')}"
            )
        return f"{self.declined[-1].status}: {self.declined[-1].said.get('detail')}" if self.declined else ""

    def expect(self, what: str, got: object, promised: Container[object]) -> None:
        """Record a difference, once, unless `got` is one of the promised values."""
        difference = f"{self.name}: {what}: {got}, promised {_in_words(promised)}"
        if got not in promised and difference not in self.differences:
            self.differences.append(difference)


def promised_by_bucket(burst: int, a_second: float, seconds: float) -> range:
    """Return how many hits a bucket may admit in some seconds: its burst, plus the refill."""
    return range(burst, burst + int(a_second * seconds) + 1)


def _in_words(promised: Container[object]) -> str:
    if isinstance(promised, range):
        return f"{promised[0]} to {promised[-1]}" if len(promised) > 1 else str(promised[0])
    return " or ".join(map(str, promised)) if isinstance(promised, list) else str(promised)


Run = Callable[[Scenario, Site], Iterator[Step]]


def run(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Send the requests of a scenario, as its entry in `SCENARIOS` says."""
    yield _step(scenario, site)


def _step(scenario: Scenario, site: Site, name: str = "") -> Step:
    if scenario.at_once:
        name, replies = name or "all at once", list(at_once(scenario, site.port))
    else:
        with Visitor(site.port) as visitor:
            if scenario.method == "POST":
                visitor.get("/")  # as a browser does, for the cookie and the CSRF token
            name, replies = name or "one after another", one_after_another(scenario, visitor)
    return Step(scenario, name, replies, scenario.admits, scenario.declines)


# --- limits -----------------------------------------------------------------------------------------------------------


def run_bursts(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Use up the burst, then wait as long as the refusal says, and be admitted again."""
    with Visitor(site.port) as visitor:
        start = monotonic()
        replies = one_after_another(scenario, visitor)
        step = Step(
            scenario, "one after another", replies, promised_by_bucket(scenario.full, 30 / 60, replies[-1].at - start)
        )
        yield step
        sleep(step.refusals[-1].retry_after if step.refusals else 0)
        yield Step(scenario, "after Retry-After", [visitor.get(scenario.url)], 1)


def run_queue(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Send all requests at once; the replies leave at an even pace."""
    start = monotonic()
    replies = list(at_once(scenario, site.port))
    refused_by = max((reply.at for reply in replies if not reply.admitted), default=start)
    step = Step(scenario, "all at once", replies, promised_by_bucket(scenario.full, 2, refused_by - start))
    waits = sorted(reply.said["waited"] for reply in replies if reply.admitted)
    step.expect("the longest wait, to the half second", round(waits[-1] * 2) / 2, [2.0, 1.5])
    step.says = "The admitted ones were answered after " + ", ".join(f"{wait:.1f}" for wait in waits) + " s."
    yield step


def run_stacked(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Reach the first of three limits, without using up the other two."""
    step = _step(scenario, site)
    step.expect("what the three have left", step.replies[-1].left, [[0, 5, 97]])
    yield step


def run_tokens(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Reserve 4,000 and use 1,500, until there is no room for 4,000."""
    step = _step(scenario, site)
    left = [reply.said["left"] for reply in step.replies if reply.admitted]
    step.expect("left after each call", left, [[8_500, 7_000, 5_500, 4_000, 2_500]])
    for refusal in step.refusals:
        step.expect("left when it was refused", refusal.left, [[2_500]])
    step.says += "\n2,500 are left. A call needs room for 4,000, and returns what it does not use."
    yield step


# --- many at the same time --------------------------------------------------------------------------------------------


def run_report(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Fill the view, and fill it again when everybody has left."""
    yield _step(scenario, site)
    yield _step(scenario, site, "all at once again")


def run_sale(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Sell the whole stock; nobody gets two."""
    step = _step(scenario, site)
    buyers = {reply.said["buyer"] for reply in step.replies if reply.admitted}
    step.expect("different buyers", len(buyers), [STOCK])
    step.expect("left in stock", counter("stock").get("sku:1"), [0])
    yield step


def run_credits(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Send more credits than Ann has; the total stays the same."""
    step = _step(scenario, site)
    ann, bob = counter("credits").get("user:ann"), counter("credits").get("user:bob")
    step.expect("what Ann and Bob have", [ann, bob], [[CREDITS - 90, 90]])
    step.says = f"409. Ann has {ann}, Bob has {bob}: {ann + bob} together."
    yield step


# --- people -----------------------------------------------------------------------------------------------------------


def run_sms(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Request codes for one number, then for another."""
    step = _step(scenario, site, "one number")
    step.expect("the second code", step.refusals[0].retry_after if step.refusals else 0, range(1, 61))
    step.expect("codes left that day", step.replies[-1].left, [[0, 4]])
    yield step
    with Visitor(site.port) as visitor:
        visitor.get("/")
        yield Step(scenario, "another number", one_after_another(scenario, visitor, ["+1 555 0199"]), 1)


def run_members(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Send the requests as a guest, then sign in and send them again."""
    with Visitor(site.port) as visitor:
        yield Step(scenario, "a guest", one_after_another(scenario, visitor), scenario.admits)
        visitor.get("/")
        visitor.post("/sign-in/")
        step = Step(scenario, "signed in", one_after_another(scenario, visitor), scenario.sends)
        step.expect("the rate's count", step.replies[-1].said.get("of"), [100])
        yield step


def run_login(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Log in before the ban, then guess until the ban, which the right password does not lift."""
    with Visitor(site.port) as visitor:
        visitor.get("/")
        forgiven = ["guess"] * 4 + ["correct horse"]
        yield Step(scenario, "4 wrong, then right", one_after_another(scenario, visitor, forgiven), 1, 4)
    step = _step(scenario, site, "until the ban")
    step.expect("each answer", [reply.status for reply in step.replies], [[403] * 5 + [429] * 2])
    for refusal in step.refusals:
        step.expect("the ban's seconds", refusal.retry_after, range(590, 601))
        step.expect("what it says", str(refusal.said.get("detail")).split(".")[0], ["Access is blocked"])
    yield step


def run_devices(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Send three devices, two of them again, then a fourth."""
    step = _step(scenario, site, "a, b, c, a, b, d")
    step.expect("the last, d", step.replies[-1].status, [429])
    yield step


# --- an API that configured rules limit -------------------------------------------------------------------------------


def run_tiers(scenario: Scenario, site: Site) -> Iterator[Step]:
    """One view, three rates: for a guest, a user and a pro."""
    for name, who, admits, rate in (
        ("a guest", "", scenario.admits, 10),
        ("signed in", DEMO, scenario.sends, 100),
        ("a pro", DEMO_PRO, scenario.sends, 1000),
    ):
        with Visitor(site.port) as visitor:
            if who:
                visitor.get("/")
                visitor.post("/sign-in/", {"who": who})
            step = Step(scenario, name, one_after_another(scenario, visitor), admits)
            step.expect("the rate's count", step.replies[-1].quotas, [{"api": rate}])
            step.expect("what is left", step.replies[-1].left, [[max(rate - scenario.sends, 0)]])
            yield step


def run_joined(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Reach the limit of the decorator: the two configured rules count only what it admitted."""
    step = _step(scenario, site)
    last = step.replies[-1]
    step.expect("the limits", last.quotas, [{"api": 10, "api-export": 6, "export-burst": 4}])
    step.expect("what the three have left", sorted(last.left), [[0, 2, 6]])
    yield step


def run_cost(scenario: Scenario, site: Site) -> Iterator[Step]:
    """Search at five units each, until there is no room for five."""
    step = _step(scenario, site)
    step.expect("the limits", step.replies[-1].quotas, [{"api": 10, "api-search": 30}])
    step.expect("what the two have left", sorted(step.replies[-1].left), [[0, 4]])
    yield step


RUNS: dict[str, Run] = {
    "bursts": run_bursts,
    "queue": run_queue,
    "stacked": run_stacked,
    "tokens": run_tokens,
    "report": run_report,
    "sale": run_sale,
    "credits": run_credits,
    "sms": run_sms,
    "members": run_members,
    "login": run_login,
    "devices": run_devices,
    "tiers": run_tiers,
    "joined": run_joined,
    "cost": run_cost,
}
"""The scenarios that need more than `run`, by slug."""
