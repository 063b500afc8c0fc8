"""Views whose decorators name configured rules, some of which do not exist."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views import View

from django_quota import quota


@login_required
@quota(rule="serach")
def misspelt(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Mixed(View):
    @quota(rule="search")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @quota(rule="logn")
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


urlpatterns = [path("a/", include([path("b/", misspelt)])), path("c/", Mixed.as_view())]
