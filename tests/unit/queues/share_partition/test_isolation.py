from __future__ import annotations

import pytest

from millrace.queues.share_partition.isolation import isolation_begins_at, part_size


def _sizes(size: int, limit: int) -> list[int]:
    return [
        size
        if count < isolation_begins_at(limit)
        else part_size(size, delivery_count=count, delivery_limit=limit)
        for count in range(limit)
    ]


@pytest.mark.parametrize(
    "size, limit, sizes",
    [
        (100, 5, [100, 100, 100, 50, 1]),
        (512, 10, [512] * 5 + [256, 128, 64, 32, 1]),
        (500, 6, [500, 500, 500, 250, 125, 1]),
        (100, 2, [100, 100]),
        (2, 5, [2, 2, 2, 1, 1]),
    ],
)
def test_parts_shrink_from_the_middle_of_the_deliveries(size: int, limit: int, sizes: list[int]) -> None:
    assert _sizes(size, limit) == sizes
