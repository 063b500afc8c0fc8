"""System checks of the views."""
