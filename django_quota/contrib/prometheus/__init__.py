"""Metrics for Prometheus: what all processes have decided, read from the store when Prometheus asks.

The figures are right across workers and restarts, without a directory for several processes: each worker sends what it
counted to the store once a second, and at its end. No label names a subject.
"""
