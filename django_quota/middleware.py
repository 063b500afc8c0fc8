"""The middleware, at the path that MIDDLEWARE names: `django_quota.middleware.QuotaMiddleware`."""

from django_quota.http.middleware import QuotaMiddleware

__all__ = ["QuotaMiddleware"]
