"""What docs/comparison.md says of other packages, shown by running them: `python -m tests.peers`."""
