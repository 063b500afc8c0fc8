"""Translates the errors of a Redis Cluster into ours."""

from __future__ import annotations

from functools import partial

from redis.exceptions import AskError, RedisError

from django_quota.core.errors import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.stores.redis import errors


def translate_cluster_error(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, AskError):  # and MOVED: the answer to a plain command, which is not sent to another server
        return StoreUnavailable(f"a slot is moving to another server: {error}")
    if "ClusterCrossSlot" in type(error).__name__ or "CROSSSLOT" in str(error):
        return ConfigurationError(
            "The keys of a command are in several slots of a Redis Cluster, which runs it in one slot or not at all.",
            "Keys with the same part in braces are in one slot.",
        )
    return errors.translate_error(error)


translated = partial(errors.translated, translate_cluster_error)
"""`errors.translated`, with the errors of a Cluster."""

translated_around_caller = partial(errors.translated, translate_cluster_error, (RedisError, OSError))
"""The same for a block that also runs code of the caller."""
