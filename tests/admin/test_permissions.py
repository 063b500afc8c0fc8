"""Every admin page refuses staff who have all permissions of the app but the one that it needs."""

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from django_quota.models import DailyCounter, QuotaOverride
from tests.admin.operators import operator, superuser

ROOT = "/admin/django_quota/"
OF_OVERRIDES = ("view_quotaoverride", "change_quotaoverride")
OF_COUNTERS = ("view_dailycounter", "change_dailycounter")
ACTIONS = {
    **dict.fromkeys(("raise", "exempt", "block"), ("add_quotaoverride", "change_quotaoverride")),
    "reset": ("reset_subject",),
    "lift": ("lift_ban",),
    "clear": ("delete_quotaoverride",),
}
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("overview/", "overview/content/"), ("view_overview",)),
    **dict.fromkeys(("ban/", "ban/?subject=user:1", "ban/lift/"), ("view_ban",)),
    "ban/lift/?all=1": ("lift_ban", "delete_quotaoverride"),
    **{f"ban/set/?lacks={needed}": (needed,) for needed in ("view_ban", "add_quotaoverride", "change_quotaoverride")},
    **{f"overview/{page}": () for page in ("add/", "1/change/", "1/delete/", "1/history/")},
    **{f"dailycounter/{page}": OF_COUNTERS for page in ("", "export/", "usage/", "C/change/", "C/history/")},
    **{f"dailycounter/usage/{page}?subject=user:1": OF_COUNTERS for page in ("", "csv/")},
    **dict.fromkeys(("dailycounter/add/", "dailycounter/C/delete/"), ()),
    **{f"quotaoverride/{page}": OF_OVERRIDES for page in ("", "O/change/", "O/history/", "rule/?name=search")},
    **dict.fromkeys(("quotaoverride/add/", "quotaoverride/preview/"), ("add_quotaoverride",)),
    "quotaoverride/preview/O/": ("change_quotaoverride",),
    "quotaoverride/O/delete/": ("delete_quotaoverride",),
    **{f"subject/{page}": ("view_subject",) for page in ("", "?subject=user:1", "user:1/change/", "user:1/history/")},
    **dict.fromkeys(("subject/add/", "subject/action/nothing/", "subject/O/delete/"), ()),
    **{
        f"subject/action/{name}/?subject=user:1&on=search&lacks={needed}": (needed,)
        for name, all_needed in ACTIONS.items()
        for needed in ("view_subject", *all_needed)
    },
}
"""What each page needs one of; none: nobody may."""


@pytest.mark.usefixtures("database", "memory_store")
@pytest.mark.parametrize("page", ["add", "{}/change", "{}/delete"])
def test_not_even_a_superuser_changes_a_daily_counter(page: str) -> None:
    counter = DailyCounter.objects.create(subject="user:1", rule="a", day="2026-11-21")
    sent = {"subject": "user:2", "rule": "a", "day": "2026-11-21", "post": "yes"}

    answer = superuser().post(f"{ROOT}dailycounter/{page.format(counter.pk)}/", sent)

    assert answer.status_code == 403
    assert [each.subject for each in DailyCounter.objects.all()] == ["user:1"]


@pytest.mark.usefixtures("database", "memory_store")
def test_a_daily_counter_has_no_form() -> None:
    counter = DailyCounter.objects.create(subject="user:1", rule="a", day="2026-11-21")

    page = superuser().get(f"{ROOT}dailycounter/{counter.pk}/change/").content.decode()

    assert 'name="_save"' not in page


@pytest.mark.usefixtures("database", "memory_store")
def test_every_page_needs_its_permission() -> None:
    override = QuotaOverride.objects.create(subject="user:1", rate="5/m")
    counter = DailyCounter.objects.create(subject="user:1", rule="a", day="2026-11-21")
    ours = Permission.objects.filter(content_type__app_label="django_quota")
    everything = set(ours.values_list("codename", flat=True))
    clients: dict[tuple[str, ...], Client] = {}

    answers: dict[tuple[str, str], int] = {}
    for page, needs in NEEDS.items():
        if needs not in clients:
            clients[needs] = operator(*sorted(everything - set(needs)), name=f"lacks-{len(clients)}")
        url = ROOT + page.replace("O/", f"{override.pk}/").replace("C/", f"{counter.pk}/")
        for method in ("get", "post"):
            answers[method, url] = getattr(clients[needs], method)(url).status_code

    assert {asked: status for asked, status in answers.items() if status not in (403, 404, 405)} == {}
    assert QuotaOverride.objects.get().mode == "rate"
    assert DailyCounter.objects.count() == 1


@pytest.mark.usefixtures("database", "memory_store")
class TestSectionOfTheApp:
    """The section "Quotas" of the admin's first page."""

    def test_staff_with_all_permissions_of_other_apps_do_not_see_it(self) -> None:
        others = Permission.objects.exclude(content_type__app_label="django_quota").select_related("content_type")
        superuser()  # so that each permission exists
        names = [f"{each.content_type.app_label}.{each.codename}" for each in others]

        shown = operator(*names).get("/admin/").content.decode()

        assert names
        assert "Users" in shown
        assert "Quotas" not in shown

    @pytest.mark.parametrize(
        "permission", ["view_overview", "view_subject", "view_ban", "view_quotaoverride", "view_dailycounter"]
    )
    def test_staff_with_one_permission_of_the_app_see_it(self, permission: str) -> None:
        assert "Quotas" in operator(permission).get("/admin/").content.decode()
