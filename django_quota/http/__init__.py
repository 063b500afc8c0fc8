"""The way of a request: which limits apply to it, when they are decided, and how it is answered.

`django_quota.middleware` enters a request and closes it. The modules, in the order in which a request meets them:

* `limited_requests`: the steps that the middleware, `@quota` and the integrations share, and the state of a request.
* `request_rules`: the rules of a request, from the settings and from `@quota`, and those that wait for its view.
* `request_slots`: the slots that a request holds.
* `decorators`: `@quota` and `@concurrency`.
* `views`: what kind of view a decorator is on, its path, and its mark.
* `settlements`: `settle` and `count_when`, once the view has answered.
* `responses`: the answer to a refused request, its log line, and the headers of every response.
* `refusal_page`: the HTML of that answer.
* `wording`: limits and waits in the words of a visitor.

Some modules serve no limited request:

* `limits`: all limits of a request, a subject or a caller, without taking anything.
* `view_lookup`: the views behind all URLs, and the limits on them.
* `checks`: the system checks of the settings.
* `rule_checks`: the system checks of rules and views.
"""
