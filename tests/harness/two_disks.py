"""A Millrace broker with two data directories, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tests.harness.millrace import MillraceProcess
from tests.harness.raw import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS, Plain, RawConnection


class TwoDisks(MillraceProcess):
    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self.second_dir = directory / "second"

    @override
    def command(self) -> Sequence[str]:
        words = list(super().command())
        behind_first = words.index("--data-dir") + 2
        return [*words[:behind_first], "--data-dir", str(self.second_dir), *words[behind_first:]]

    @override
    def partition_dirs(self) -> list[Path]:
        directories = (path.parent for data in self.data_dirs for path in data.glob("*/partition.metadata"))
        given_up = ("-delete", "-stray", "-future", "-moved")
        return sorted(path for path in directories if not path.name.endswith(given_up))

    @property
    def data_dirs(self) -> tuple[Path, Path]:
        return self.data_dir, self.second_dir

    def home_of(self, topic: str, partition: int = 0) -> Path:
        """The data directory that holds a replica, as the disks have it."""
        homes = [data for data in self.data_dirs if (data / f"{topic}-{partition}").is_dir()]
        assert len(homes) == 1, homes
        return homes[0]

    def other(self, data: Path) -> Path:
        return self.second_dir if data == self.data_dir else self.data_dir

    def describe(self) -> dict[str, Plain]:
        """What DescribeLogDirs says, by path."""
        with RawConnection((self.host, self.port)) as connection:
            answer = connection.call(DESCRIBE_LOG_DIRS, 4, {"topics": None})
        return {result["log_dir"]: result for result in answer["results"]}

    def arriving(self, data: Path) -> list[tuple[str, int]]:
        """The replicas that are being copied into a directory."""
        return [
            (topic["name"], partition["partition_index"])
            for topic in self.describe()[str(data)]["topics"]
            for partition in topic["partitions"]
            if partition["is_future_key"]
        ]

    def alter(self, data: Path, topic: str, *partitions: int) -> list[str]:
        """AlterReplicaLogDirs; the errors."""
        request = {"dirs": [{"path": str(data), "topics": [{"name": topic, "partitions": list(partitions)}]}]}
        with RawConnection((self.host, self.port)) as connection:
            answer = connection.call(ALTER_REPLICA_LOG_DIRS, 2, request)
        return [result["error_code"] for result in answer["results"][0]["partitions"]]
