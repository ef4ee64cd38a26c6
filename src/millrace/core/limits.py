"""Bounds that are not settings, each with its reason."""

from __future__ import annotations

from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
"""A partition's directory is `<name>-<partition>`; with a suffix it must fit into 255 bytes."""

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""One request must not fill the disk with directories by a typing error. Kafka refuses the same number."""

REQUEST_PARTITIONS_MAX: Final = 200_000
"""Topics and partitions that one Produce or Fetch may name: each costs some hundred bytes of memory once
decoded, and as few as three on the wire."""
