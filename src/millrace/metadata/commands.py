"""What can be asked of the controller, and what it decides: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.metadata.config_definitions import BrokerLayers
from millrace.metadata.image import BrokerState
from millrace.metadata.store import Compare, LeaseId, Put


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    name: str
    topic_id: TopicId
    partition_count: int = -1
    """-1 takes the broker's num.partitions."""
    replication_factor: int = -1
    """-1 takes the broker's default.replication.factor."""
    assignments: Mapping[int, Sequence[int]] | None = None
    """The replicas of every partition, leader first, when the caller places them by hand."""
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Exactly one of the two says which."""

    name: str | None = None
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Gives a topic more partitions; it never takes any away."""

    name: str
    count: int
    """How many the topic has afterwards."""
    assignments: Sequence[Sequence[int]] | None = None
    """The replicas of the new partitions only."""


class AlterOperation(enum.IntEnum):
    """The numbers are those of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One change of one setting, as IncrementalAlterConfigs asks for it."""

    name: str
    operation: AlterOperation
    value: str | None


@dataclass(frozen=True, slots=True)
class TopicResource:
    """The settings of a topic."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerResource:
    """The settings of a broker, or of all of them."""

    node_id: NodeId | None
    """None means the defaults of all brokers."""


@dataclass(frozen=True, slots=True)
class GroupResource:
    """A group may have settings before it exists, and keeps them when it is gone."""

    group_id: str


ConfigResource: TypeAlias = TopicResource | BrokerResource | GroupResource


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Change some settings, leave the others as they are."""

    resource: ConfigResource
    alterations: Sequence[Alteration]


@dataclass(frozen=True, slots=True)
class ReplaceConfigs:
    """Set exactly these and drop all others."""

    resource: ConfigResource
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    count: int


@dataclass(frozen=True, slots=True)
class SkipProducerIds:
    """Never give out a producer id below this one: logs know them already."""

    below: int


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    broker: BrokerState
    lease_id: LeaseId | None
    offline: Mapping[TopicId, Sequence[int]] = field(default_factory=dict)
    """Replicas that it cannot serve: known from the first moment, so that it is elected for none of them."""


@dataclass(frozen=True, slots=True)
class ReportOffline:
    """A data directory of the broker has failed: these are all the replicas that it cannot serve now."""

    node_id: NodeId
    incarnation: str
    replicas: Mapping[TopicId, Sequence[int]]


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    node_id: NodeId
    incarnation: str


@dataclass(frozen=True, slots=True)
class SetClusterId:
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTopic:
    """Take a topic whose logs are on a broker's disk into the cluster."""

    name: str
    topic_id: TopicId
    node_id: NodeId
    leader_epochs: Mapping[int, Epoch]
    """By partition: the last epoch in its log, or NO_EPOCH."""


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpochs:
    """A log is ahead of the store, which was restored from a backup: the leader's epoch must not go back."""

    topic_id: TopicId
    leader_epochs: Mapping[int, Epoch]


@dataclass(frozen=True, slots=True)
class ConfirmDeletion:
    """A broker has no log of a deleted topic any more."""

    topic_id: TopicId
    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr:
    """The leader's wish about who is in sync, decided on the state with this partition epoch."""

    topic_id: TopicId
    partition: int
    leader_id: NodeId
    leader_epoch: Epoch
    partition_epoch: int
    isr: Sequence[NodeId]
    broker_epochs: Mapping[NodeId, int] = field(default_factory=dict)
    """The epochs of the brokers whose logs were found in sync, where they are known: one that has started
    again since may have an empty disk."""


class ElectionKind(enum.IntEnum):
    """The numbers are those of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeader:
    """On somebody's request; elections that are due happen by themselves."""

    topic: str
    partition: int
    kind: ElectionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassign:
    """Moves a partition to other brokers, or stops such a move."""

    topic: str
    partition: int
    replicas: Sequence[int] | None
    """Where to move, preferred leader first; None stops a move that is under way."""
    is_factor_change_allowed: bool = True


@dataclass(frozen=True, slots=True)
class ClaimController:
    """Become the controller, if there is none."""

    node_id: NodeId
    incarnation: str


@dataclass(frozen=True, slots=True)
class BeginStop:
    """The broker is about to stop: it is to lead nothing that another can lead."""

    node_id: NodeId
    incarnation: str


@dataclass(frozen=True, slots=True)
class EndFilling:
    """A new broker has its share of the replicas, or is to get no more; decided by the controller in this
    office."""

    node_id: NodeId
    controller_revision: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """A broker that is down will not come back."""

    node_id: NodeId


Command: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | ReplaceConfigs
    | AllocateProducerIds
    | SkipProducerIds
    | RegisterBroker
    | ReportOffline
    | UnregisterBroker
    | SetClusterId
    | AdoptTopic
    | RaiseLeaderEpochs
    | ConfirmDeletion
    | AlterIsr
    | ElectLeader
    | Reassign
    | ClaimController
    | BeginStop
    | EndFilling
    | RemoveMember
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings that decisions depend on."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    is_topic_deletion_enabled: bool = True
    is_filling_enabled: bool = False
    """Whether brokers that join for the first time are given their share of the replicas."""
    layers: BrokerLayers = field(default_factory=BrokerLayers)
    """What is set for brokers: the value that APPEND and SUBTRACT start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to write, if the compares hold."""

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    early_puts: tuple[Put, ...] = ()
    """Mean nothing until `puts` are there; may be written before, in several transactions."""
    late_deletes: tuple[str, ...] = ()
    """Mean nothing once `deletes` are done; may follow later."""

    @property
    def is_empty(self) -> bool:
        return not (self.puts or self.deletes or self.early_puts or self.late_deletes)
