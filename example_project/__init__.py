"""The example site of django_quota: `make demo` runs it by itself, `make serve` leaves it up for you to try."""
