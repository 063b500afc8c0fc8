"""Integrations with other packages, one module each. A module imports its package only there."""
