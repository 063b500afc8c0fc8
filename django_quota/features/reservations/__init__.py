"""Reservations: an estimate is spent now, and settled later."""
