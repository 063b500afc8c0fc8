"""Reservations: spend an estimate now, and settle it later."""
