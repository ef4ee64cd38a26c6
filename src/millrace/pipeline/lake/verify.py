"""Counts and checksums of records by partition, to show that two places hold the same in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's hash passes over nulls, so we hash beside the bytes whether there are any. We leave the offset out:
# the same records have other offsets in another topic. Their rank stands for their order.
_RECORD: Final = (
    "xxhash64(unix_millis(timestamp), key IS NULL, key, value IS NULL, value, coalesce(size(headers), 0),"
    " transform(headers, h -> struct(h.key, h.value IS NULL AS missing, h.value)))"
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How many records a partition holds, and a checksum over them in their order."""

    records: int
    checksum: int

    def hexadecimal(self) -> str:
        return f"{self.checksum:016x}"


NOTHING: Final = Fingerprint(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One partition in both places."""

    partition: int
    wanted: Fingerprint
    found: Fingerprint

    @property
    def is_same(self) -> bool:
        return self.wanted == self.found


def fingerprints(rows: DataFrame) -> dict[int, Fingerprint]:
    """Count and checksum by partition; rows need key, value, headers, timestamp, partition and offset."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    # We hash before the sort, so that payloads need not be sorted.
    hashed = rows.select("partition", "offset", F.expr(_RECORD).alias("record"))
    rank = F.row_number().over(Window.partitionBy("partition").orderBy("offset"))
    ranked = hashed.select("partition", F.xxhash64(rank, "record").alias("ranked"))
    sums = ranked.groupBy("partition").agg(
        F.count(F.lit(1)), F.sum(F.col("ranked").cast("decimal(20,0)")).cast("decimal(38,0)")
    )
    return {int(row[0]): Fingerprint(int(row[1]), int(row[2]) % (1 << 64)) for row in sums.collect()}


def compare(wanted: Mapping[int, Fingerprint], found: Mapping[int, Fingerprint]) -> list[Comparison]:
    """Compare all partitions that either place has."""
    return [
        Comparison(
            partition=partition, wanted=wanted.get(partition, NOTHING), found=found.get(partition, NOTHING)
        )
        for partition in sorted({**wanted, **found})
    ]
