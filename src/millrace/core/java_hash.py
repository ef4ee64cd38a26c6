"""How Kafka places names in the partitions of its internal topics."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65_536)
def java_hash(text: str) -> int:
    """A string's hash as Kafka counts it for placing groups and transactional ids, never negative."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    if value >= 0x8000_0000:
        value = 0x1_0000_0000 - value
    return 0 if value == 0x8000_0000 else value
