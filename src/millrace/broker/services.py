"""The services that handlers may call, joined by `app` and handed to every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.broker.answer_cache import AnswerCache
from millrace.broker.staging import Staging
from millrace.broker.wakeups import Wakeups
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.broker.config import BrokerConfig
    from millrace.broker.fetch_sessions import FetchSessions
    from millrace.broker.markers import Markers
    from millrace.broker.producer_ids import ProducerIds
    from millrace.core.clock import Clock
    from millrace.groups.service import Groups
    from millrace.log.log_directory import LogDirectory
    from millrace.metadata.service import Metadata
    from millrace.replica.partitions import Partitions
    from millrace.transactions.service import Transactions


@dataclass(slots=True, kw_only=True)
class Services:
    clock: Clock
    config: BrokerConfig
    """As it counts now: replaced whenever the metadata's settings for brokers change."""
    metadata: Metadata
    partitions: Partitions
    log_directory: LogDirectory
    fetch_sessions: FetchSessions
    fetch_bytes_max: int
    groups: Groups
    transactions: Transactions
    markers: Markers
    producer_ids: ProducerIds
    wakeups: Wakeups = field(default_factory=Wakeups)
    metadata_answers: AnswerCache = field(default_factory=AnswerCache)
    staging: Staging = field(init=False)

    def __post_init__(self) -> None:
        self.staging = Staging(self.wakeups)

    def absent_partition_error(self, topic: str, partition: int) -> ErrorCode:
        """Why a partition that a request names is not held here."""
        known = self.metadata.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.log_directory.offline_reason is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
