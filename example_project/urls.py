"""The addresses: one for each scene of the registry, the API, the admin, and the pages around them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from example_project import pages
from example_project.scenes import SCENES

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
    *(path(scene.url.removeprefix("/"), scene.view, name=f"try-{scene.slug}") for scene in SCENES if not scene.path),
]
