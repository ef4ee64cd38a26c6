"""What can be asked of the controller, and what it decides: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.core.override import override
from millrace.metadata.config_definitions import BrokerLayers
from millrace.metadata.image import BrokerState
from millrace.metadata.security.commands import SecurityCommand
from millrace.metadata.store import Compare, LeaseId, Put


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Creates a topic and places its replicas."""

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
    """Deletes a topic, which exactly one of the two fields names."""

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

    @override
    def __repr__(self) -> str:
        """Without the value, which may be a secret."""
        return f"Alteration({self.name}, {self.operation.name})"


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
    configs: Mapping[str, str] = field(repr=False)
    """Secrets may be among them."""


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Takes a block of producer ids that nobody else ever gets."""

    count: int


@dataclass(frozen=True, slots=True)
class SkipProducerIds:
    """Never give out a producer id below this one: logs know them already."""

    below: int


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Makes a broker known, under its lease if there is one."""

    broker: BrokerState
    lease_id: LeaseId | None
    offline: Mapping[TopicId, Sequence[int]] = field(default_factory=dict)
    """Replicas that it cannot serve, known from the first moment, so that it is elected for none of them."""


@dataclass(frozen=True, slots=True)
class ReportOffline:
    """A data directory of the broker has failed: these are all the replicas that it cannot serve now."""

    node_id: NodeId
    incarnation: str
    replicas: Mapping[TopicId, Sequence[int]]


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Takes back the registration of this run of a broker."""

    node_id: NodeId
    incarnation: str


@dataclass(frozen=True, slots=True)
class SetClusterId:
    """Gives the cluster an id, unless it has one."""

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
    """Raises epochs to those of logs that are ahead of a restored store: leader epochs must not go back."""

    topic_id: TopicId
    leader_epochs: Mapping[int, Epoch]


@dataclass(frozen=True, slots=True)
class ConfirmDeletion:
    """Notes that a broker has no log of a deleted topic any more."""

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
    """The epochs of the brokers whose logs were found in sync, where they are known: a broker that has
    started again since may have an empty disk."""


class ElectionKind(enum.IntEnum):
    """The numbers are those of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeader:
    """Elects a leader on somebody's request; elections that are due happen by themselves."""

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
    """Begins a controlled shutdown: the broker is to lead nothing that another can lead."""

    node_id: NodeId
    incarnation: str


@dataclass(frozen=True, slots=True)
class EndFilling:
    """Notes that a new broker has its share of the replicas, or is to get no more. Only the controller that
    took office at this revision may say so."""

    node_id: NodeId
    controller_revision: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Forgets a broker that is down and will not come back."""

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
    | SecurityCommand
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
    """These mean nothing until `puts` are there; they may be written before, in several transactions."""
    late_deletes: tuple[str, ...] = ()
    """These mean nothing once `deletes` are done; they may follow later."""

    @property
    def is_empty(self) -> bool:
        return not (self.puts or self.deletes or self.early_puts or self.late_deletes)
