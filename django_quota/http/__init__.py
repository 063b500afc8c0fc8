"""Decorators, responses and checks: how HTTP meets the limiter. It renders decisions and makes none."""
