"""The identifiers of the house. Distinct types, because mixing two integers is our likeliest bug."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Final, NamedTuple, NewType

from millrace.core.override import override

Offset = NewType("Offset", int)
"""A record's place in a partition's log, counted in records."""
Position = NewType("Position", int)
"""A byte's place in a segment file."""
Epoch = NewType("Epoch", int)
"""A leader's term of office."""
NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", bytes)
"""The 16 raw bytes of a topic's UUID, as they stand on the wire."""

TEXTS_KEPT_MAX: Final = 10_000
"""Topic ids whose texts are remembered: a failover names the same few in thousands of keys."""
NO_TOPIC_ID: Final = TopicId(bytes(16))
NO_EPOCH: Final = Epoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@lru_cache(maxsize=TEXTS_KEPT_MAX)
def format_topic_id(topic_id: TopicId) -> str:
    """The 22 characters that Kafka's tools and files show for a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


@lru_cache(maxsize=TEXTS_KEPT_MAX)
def parse_topic_id(text: str) -> TopicId:
    """The inverse of `format_topic_id`; raises ValueError for anything else."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(raw)}")
    return TopicId(raw)
