"""The pages around the scenes: the front page, the refusal to look at, signing in and out, starting over."""

from __future__ import annotations

from django.contrib.auth import get_user_model, login, logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from django_quota import check
from example_project.forget import forget_all
from example_project.highlight import highlighted
from example_project.scenes import SCENES

DEMO_USER = "demo"


def front(request: HttpRequest) -> HttpResponse:
    """Show every scene, each with the code of its view and a button."""
    scenes = [(scene, highlighted(scene.source)) for scene in SCENES]
    return render(request, "example/front.html", {"scenes": scenes})


def refused(request: HttpRequest) -> HttpResponse:
    """Show what a refused visitor's browser shows: of two hits under `1/m`, the second is never let in."""
    for _ in range(2):
        check("1/m", request, name="refused").raise_if_refused()  # QuotaMiddleware answers QuotaExceeded
    return redirect("front")


@require_POST
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in as the demo user, who is made when first needed."""
    user, _ = get_user_model().objects.get_or_create(username=DEMO_USER)
    login(request, user)
    return redirect("front")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Be a guest again."""
    logout(request)
    return redirect("front")


@require_POST
def start_over(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 — a view takes a request
    """Forget what everybody has used."""
    forget_all()
    return redirect("front")
