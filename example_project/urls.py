"""The URLs: one for each scenario, the API, the admin and the other pages."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from example_project import pages
from example_project.scenarios import SCENARIOS

urlpatterns = [
    path("", pages.front, name="front"),
    path("refused/", pages.refused, name="refused"),
    path("sign-in/", pages.sign_in, name="sign-in"),
    path("sign-out/", pages.sign_out, name="sign-out"),
    path("start-over/", pages.start_over, name="start-over"),
    path("crowd/<slug:slug>/", pages.crowd, name="crowd"),
    path("favicon.ico", pages.icon, name="icon"),  # browsers ask for it where a page names none, as the admin's
    path("admin/", admin.site.urls),
    path("api/", include("example_project.api")),
    *(
        path(scenario.url.removeprefix("/"), scenario.view, name=f"try-{scenario.slug}")
        for scenario in SCENARIOS
        if not scenario.path
    ),
]
