"""Nothing is needed here any more: pytest finds `django_quota.testing.plugin` by itself.

It stays for a `conftest.py` that lists it in `pytest_plugins`.
"""
