"""The addresses: one for each scene of the registry, and the pages around them."""

from __future__ import annotations

from django.urls import path

from example_project import pages
from example_project.scenes import SCENES

urlpatterns = [
    path("", pages.front, name="front"),
    path("refused/", pages.refused, name="refused"),
    path("sign-in/", pages.sign_in, name="sign-in"),
    path("sign-out/", pages.sign_out, name="sign-out"),
    path("start-over/", pages.start_over, name="start-over"),
    path("crowd/<slug:slug>/", pages.crowd, name="crowd"),
    *(path(scene.url.removeprefix("/"), scene.view, name=f"try-{scene.slug}") for scene in SCENES),
]
