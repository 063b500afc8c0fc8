"""What your code calls besides limits: a folder for each noun, a module for a small one.

In most folders, `calls` is what your code calls, and `operations` is what runs in the store. Redis runs the `.lua`
files; the Python class that has one as its `script` is its specification.

* `bans`: bans that your code sets and lifts, and the lists of them.
* `counters`: named totals, daily counts and counts of distinct values.
* `events`: the log of refusals, bans and near-limit warnings.
* `reservations`: an estimate that is spent now and settled later.
* `resets`: what rules have counted is deleted, and bans are lifted.
* `slots`: a limited number of callers hold one at a time, each with a lease.
* `usage`: what subjects have used on each day, and the roll-up to rows.
* `logins`: who a failed login counts for, and how to unlock them.
* `once`: whether a value is new.
* `raised_limits`: more units for the running period.
* `request_end`: what must happen when a request or a stream ends.
* `subject_contents`: what the store holds for one subject.
"""
