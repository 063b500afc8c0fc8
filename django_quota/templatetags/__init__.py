"""Template tags: what a template of the admin cannot say by itself."""
