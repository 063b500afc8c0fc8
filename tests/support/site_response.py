"""Functions for the setting RESPONSE, as a site may write them."""

from django.http import HttpRequest, HttpResponse, JsonResponse

from django_quota import Decision


def teapot(request: HttpRequest, decision: Decision) -> HttpResponse:
    return JsonResponse({"rule": decision.rule, "path": request.path}, status=418)


async def in_vain(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse("never")
