"""Integrations with other packages: each module imports its package, and nothing else imports the module."""
