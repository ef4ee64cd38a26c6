"""Apache Kafka behind the same face as Millrace: the reference that every compat test can be run against."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tests.harness.process import BrokerProcess
from tools.kafka_distribution import KafkaDistribution, KafkaNode, locate


class KafkaProcess(BrokerProcess):
    kind = "kafka"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        distribution: KafkaDistribution | None = None,
    ) -> None:
        super().__init__(directory, settings)
        self.node = KafkaNode(
            distribution or locate(), directory, port=self.port, heap="512M", settings=self.settings
        )

    @override
    def command(self) -> Sequence[str]:
        node = self.node
        return node.distribution.command(
            "kafka.Kafka", str(node.directory / "server.properties"), heap=node.heap
        )

    @override
    def launch(self) -> subprocess.Popen[bytes]:
        self.node.format()
        return super().launch()
