"""The permissions in Redis that docs/reliability.md names: they suffice, and none of them is for nothing."""
