"""What operators ask: what is counted for a subject, is the store healthy, what would other rates refuse.

The commands and the admin show it.

* `activity`: what all processes have decided, who is banned, which slots are full.
* `health`: whether Redis answers, and what may harm the limits.
* `lookup`: the user, subject or rule that an operator has typed.
* `inspection`: all that is known of one subject, and what an override would change.
* `override_lists`: lists of addresses, saved as overrides with one label.
* `sweep`: drops what has expired.
* `access_log`, `replay`, `tightest`: read a log, replay rules on it, and find the lowest rates that refuse nothing.
"""
