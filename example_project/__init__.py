"""The example site of django_quota: `make demo` plays it through by itself, `make serve` leaves it up to play with."""
