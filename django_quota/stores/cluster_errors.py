"""What goes wrong with a Redis Cluster, as our errors. It must not know what was sent, nor where."""

from __future__ import annotations

from functools import partial

from redis.exceptions import AskError

from django_quota.exceptions import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.stores import errors


def ours_of_cluster(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, AskError):  # and MOVED: of a plain command, which is not sent on
        return StoreUnavailable(f"a slot is on the move: {error}")
    if "ClusterCrossSlot" in type(error).__name__ or "CROSSSLOT" in str(error):
        return ConfigurationError(
            "What is asked lies in several slots of a Redis Cluster, and is done in one of them or not at all.",
            "Keys with the same part in braces lie in one slot.",
        )
    return errors.ours(error)


translated = partial(errors.translated, ours_of_cluster)
"""`errors.translated`, for what a Cluster says."""

translated_around_caller = partial(errors.translated, ours_of_cluster, is_theirs=errors.is_of_redis_py)
"""The same around a block of which a part is the caller's."""
