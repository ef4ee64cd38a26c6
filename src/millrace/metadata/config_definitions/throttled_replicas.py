"""Which replicas of a topic are held to a rate: all of them (`*`), or a list of `partition:broker`."""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.metadata.config_definitions.model import Check, Value

EVERY: Final = "*"
DIGITS_MAX: Final = 9


class ThrottledReplicas(NamedTuple):
    """The replicas of a topic that are held to a rate."""

    is_every: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()
    """Pairs of partition and broker; only ever asked for membership."""

    def includes(self, partition: int, node_id: int) -> bool:
        return self.is_every or (partition, node_id) in self.pairs


NONE: Final = ThrottledReplicas()


def parse_throttled_replicas(value: Value) -> ThrottledReplicas:
    """What a checked list of the setting says."""
    assert isinstance(value, tuple), value
    if not value:
        return NONE
    if value == (EVERY,):
        return ThrottledReplicas(is_every=True)
    pairs = (item.split(":") for item in value)
    return ThrottledReplicas(pairs=frozenset((int(partition), int(broker)) for partition, broker in pairs))


def _are_replicas(value: Value) -> bool:
    assert isinstance(value, tuple), value
    return value == (EVERY,) or all(_is_replica(item) for item in value)


def _is_replica(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return bool(colon) and _is_number(partition) and _is_number(broker)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


THROTTLED_REPLICAS: Final = Check(_are_replicas, "* or partition:broker, separated by commas")
