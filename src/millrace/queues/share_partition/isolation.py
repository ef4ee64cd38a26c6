"""How a record that nobody can process is found among those that were delivered with it: from the middle of
the allowed deliveries on, ever smaller parts of what was first delivered together are delivered alone."""

from __future__ import annotations

from typing import Final

_LIMIT_MIN: Final = 2


def isolation_begins_at(delivery_limit: int) -> int:
    """From which delivery count on records are delivered in smaller parts."""
    return max(_LIMIT_MIN, -(-delivery_limit // 2))


def part_size(size: int, *, delivery_count: int, delivery_limit: int) -> int:
    """How many records of a delivery of `size` are delivered together after so many deliveries."""
    if delivery_limit > _LIMIT_MIN and delivery_count >= delivery_limit - 1:
        return 1
    return max(1, size >> (delivery_count - isolation_begins_at(delivery_limit) + 1))
