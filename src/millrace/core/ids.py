"""The identifiers of the house.

Those that are only passed on and compared have types of their own, because mixing two integers is our
likeliest bug. Code adds and compares offsets and positions: as types of their own they would need a call
after each sum, also on the path of every batch. They are plain integers whose names end in `offset` or
`position`, and a function of log/ that takes both takes one of them by keyword (a test checks that).
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Final, NamedTuple, NewType

from millrace.core.override import override

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
    """Names one partition; its text is the name of its directory."""

    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@lru_cache(maxsize=TEXTS_KEPT_MAX)
def format_topic_id(topic_id: TopicId) -> str:
    """The 22 characters that Kafka's tools and files show for a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def is_one_bit_off(stored: TopicId, topic_id: TopicId) -> bool:
    """Whether one flipped bit in the text of an id explains what is stored. Ids are random: by chance no two
    are so near."""
    pairs = zip(format_topic_id(stored), format_topic_id(topic_id), strict=True)
    odd = [ord(one) ^ ord(other) for one, other in pairs if one != other]
    return len(odd) == 1 and odd[0].bit_count() == 1


@lru_cache(maxsize=TEXTS_KEPT_MAX)
def parse_topic_id(text: str) -> TopicId:
    """The inverse of `format_topic_id`; raises ValueError for anything else."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(raw)}")
    if format_topic_id(TopicId(raw)) != text:
        # The decoder also takes characters of the other alphabet, and ignores the last bits.
        raise ValueError(f"{text!r} is no topic id")
    return TopicId(raw)
