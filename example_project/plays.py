"""How the demo plays each scene: what a real client sends, and what must come back. Printing it is `demo`'s part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep

from django_quota import counter
from example_project.act import Act, promised_by_bucket
from example_project.client import Visitor
from example_project.people import DEMO, DEMO_PRO
from example_project.scenes import Scene
from example_project.sending import at_once, one_after_another
from example_project.stage import Site
from example_project.start import CREDITS, STOCK

Play = Callable[[Scene, Site], Iterator[Act]]


def play(scene: Scene, site: Site) -> Iterator[Act]:
    """Send a scene's requests, one after another or all at once; what is promised is in the registry."""
    yield _act(scene, site)


def _act(scene: Scene, site: Site, name: str = "") -> Act:
    if scene.at_once:
        name, replies = name or "all at once", list(at_once(scene, site.port))
    else:
        with Visitor(site.port) as visitor:
            if scene.method == "POST":
                visitor.get("/")  # as the page does: with its cookie and CSRF token
            name, replies = name or "one after another", one_after_another(scene, visitor)
    return Act(scene, name, replies, scene.admits, scene.declines)


# --- limits -----------------------------------------------------------------------------------------------------------


def play_bursts(scene: Scene, site: Site) -> Iterator[Act]:
    """Use up the burst, then wait for as long as the refusal says and be let in again."""
    with Visitor(site.port) as visitor:
        start = monotonic()
        replies = one_after_another(scene, visitor)
        act = Act(scene, "one after another", replies, promised_by_bucket(scene.full, 30 / 60, replies[-1].at - start))
        yield act
        sleep(act.refusals[-1].retry_after if act.refusals else 0)
        yield Act(scene, "after Retry-After", [visitor.get(scene.url)], 1)


def play_queue(scene: Scene, site: Site) -> Iterator[Act]:
    """Come all at once, and leave evenly."""
    start = monotonic()
    replies = list(at_once(scene, site.port))
    refused_by = max((reply.at for reply in replies if not reply.admitted), default=start)
    act = Act(scene, "all at once", replies, promised_by_bucket(scene.full, 2, refused_by - start))
    waits = sorted(reply.said["waited"] for reply in replies if reply.admitted)
    act.expect("the longest wait, to the half second", round(waits[-1] * 2) / 2, [2.0, 1.5])
    act.says = "let go after " + ", ".join(f"{wait:.1f}" for wait in waits) + " s"
    yield act


def play_stacked(scene: Scene, site: Site) -> Iterator[Act]:
    """Be refused by the first of three limits, and see that the others were not used."""
    act = _act(scene, site)
    act.expect("what the three have left", act.replies[-1].left, [[0, 5, 97]])
    yield act


def play_tokens(scene: Scene, site: Site) -> Iterator[Act]:
    """Hold 4,000 and use 1,500 until there is no room for 4,000."""
    act = _act(scene, site)
    left = [reply.said["left"] for reply in act.replies if reply.admitted]
    act.expect("left after each call", left, [[8_500, 7_000, 5_500, 4_000, 2_500]])
    for refusal in act.refusals:
        act.expect("left when it was refused", refusal.left, [[2_500]])
    act.says += "\n2500 are left, and a call needs room for 4000:\nit gives back what it did not use"
    yield act


# --- many at the same time --------------------------------------------------------------------------------------------


def play_report(scene: Scene, site: Site) -> Iterator[Act]:
    """Fill the view, and, when all have left, fill it again."""
    yield _act(scene, site)
    yield _act(scene, site, "all at once again")


def play_sale(scene: Scene, site: Site) -> Iterator[Act]:
    """Sell the stock, and see that nobody has two and nothing is left."""
    act = _act(scene, site)
    buyers = {reply.said["buyer"] for reply in act.replies if reply.admitted}
    act.expect("different buyers", len(buyers), [STOCK])
    act.expect("left in stock", counter("stock").get("sku:1"), [0])
    yield act


def play_credits(scene: Scene, site: Site) -> Iterator[Act]:
    """Send more than there is, and see that none of it was lost or made."""
    act = _act(scene, site)
    ann, bob = counter("credits").get("user:ann"), counter("credits").get("user:bob")
    act.expect("what Ann and Bob have", [ann, bob], [[CREDITS - 90, 90]])
    act.says = f"409: Ann has {ann}, Bob has {bob}: {ann + bob} together"
    yield act


# --- people -----------------------------------------------------------------------------------------------------------


def play_sms(scene: Scene, site: Site) -> Iterator[Act]:
    """Ask for codes for one number, then for another."""
    act = _act(scene, site, "one number")
    act.expect("the second code", act.refusals[0].retry_after if act.refusals else 0, range(1, 61))
    act.expect("codes left that day", act.replies[-1].left, [[0, 4]])
    yield act
    with Visitor(site.port) as visitor:
        visitor.get("/")
        yield Act(scene, "another number", one_after_another(scene, visitor, ["+1 555 0199"]), 1)


def play_members(scene: Scene, site: Site) -> Iterator[Act]:
    """Come as a guest, then sign in and send the same again."""
    with Visitor(site.port) as visitor:
        yield Act(scene, "a guest", one_after_another(scene, visitor), scene.admits)
        visitor.get("/")
        visitor.post("/sign-in/")
        act = Act(scene, "signed in", one_after_another(scene, visitor), scene.sends)
        act.expect("the rate's count", act.replies[-1].said.get("of"), [100])
        yield act


def play_login(scene: Scene, site: Site) -> Iterator[Act]:
    """Remember the password in time, then guess until the ban, which the right password does not lift."""
    with Visitor(site.port) as visitor:
        visitor.get("/")
        forgiven = ["guess"] * 4 + ["correct horse"]
        yield Act(scene, "right in time", one_after_another(scene, visitor, forgiven), 1, 4)
    act = _act(scene, site, "guessing on")
    act.expect("each answer", [reply.status for reply in act.replies], [[403] * 5 + [429] * 2])
    for refusal in act.refusals:
        act.expect("the ban's seconds", refusal.retry_after, range(590, 601))
        act.expect(
            "what it says", str(refusal.said.get("detail")).split(".")[0], ["There were too many refused requests"]
        )
    yield act


def play_devices(scene: Scene, site: Site) -> Iterator[Act]:
    """Come with three devices, again with two of them, and with a fourth."""
    act = _act(scene, site, "a b c a b d")
    act.expect("the last, d", act.replies[-1].status, [429])
    yield act


# --- an API that rules of the settings limit --------------------------------------------------------------------------


def play_tiers(scene: Scene, site: Site) -> Iterator[Act]:
    """Come as a guest, then as somebody who is signed in, then as a pro: the same view, three rates."""
    for name, who, admits, rate in (
        ("a guest", "", scene.admits, 10),
        ("signed in", DEMO, scene.sends, 100),
        ("a pro", DEMO_PRO, scene.sends, 1000),
    ):
        with Visitor(site.port) as visitor:
            if who:
                visitor.get("/")
                visitor.post("/sign-in/", {"who": who})
            act = Act(scene, name, one_after_another(scene, visitor), admits)
            act.expect("the rate's count", act.replies[-1].quotas, [{"api": rate}])
            act.expect("what is left", act.replies[-1].left, [[max(rate - scene.sends, 0)]])
            yield act


def play_joined(scene: Scene, site: Site) -> Iterator[Act]:
    """Be refused by the decorator, and see that the two rules of the settings have counted what it let in, no more."""
    act = _act(scene, site)
    last = act.replies[-1]
    act.expect("the limits", last.quotas, [{"api": 10, "api-export": 6, "export-burst": 4}])
    act.expect("what the three have left", sorted(last.left), [[0, 2, 6]])
    yield act


def play_cost(scene: Scene, site: Site) -> Iterator[Act]:
    """Take five units a search, until there is no room for five."""
    act = _act(scene, site)
    act.expect("the limits", act.replies[-1].quotas, [{"api": 10, "api-search": 30}])
    act.expect("what the two have left", sorted(act.replies[-1].left), [[0, 4]])
    yield act


PLAYS: dict[str, Play] = {
    "bursts": play_bursts,
    "queue": play_queue,
    "stacked": play_stacked,
    "tokens": play_tokens,
    "report": play_report,
    "sale": play_sale,
    "credits": play_credits,
    "sms": play_sms,
    "members": play_members,
    "login": play_login,
    "devices": play_devices,
    "tiers": play_tiers,
    "joined": play_joined,
    "cost": play_cost,
}
"""Scenes that take more than sending their requests once, by slug."""
