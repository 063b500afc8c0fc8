"""The site and its admin in a real browser: headless Chromium, driven by selenium, against the real site process."""
