"""What can go wrong with the cluster's metadata, as facts. No wire codes in here."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, format_topic_id


class MetadataError(MillraceError):
    """The root of this package's expected failures."""


# What a user asked for and cannot have.


class InvalidTopicName(MetadataError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"topic name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class TopicExists(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Topic '{name}' already exists.")
        self.name = name


class UnknownTopic(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no topic {name!r}")
        self.name = name


class UnknownTopicId(MetadataError):
    def __init__(self, topic_id: TopicId) -> None:
        super().__init__(f"there is no topic with the id {format_topic_id(topic_id)}")
        self.topic_id = topic_id


class TopicDeletionDisabled(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} cannot be deleted: delete.topic.enable is false")
        self.name = name


class InvalidPartitions(MetadataError):
    """A partition count that is out of range or would shrink a topic."""


class InvalidReplicationFactor(MetadataError):
    """More replicas asked for than there are brokers, or none."""


class InvalidReplicaAssignment(MetadataError):
    """A replica assignment by hand that does not hold together."""


class InvalidConfig(MetadataError):
    """A setting's name or value that is not allowed. `allowed` says in words what is."""

    def __init__(self, name: str, value: str | None, reason: str, *, allowed: str = "") -> None:
        shown = name if value is None else f"{name}={value}"
        super().__init__(f"{shown}: {reason}" + (f" (allowed: {allowed})" if allowed else ""))
        self.name = name
        self.value = value
        self.reason = reason
        self.allowed = allowed


class SettingNotDynamic(MetadataError):
    """A broker setting that a running broker cannot change, or not at the level asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


class ContradictoryRequest(MetadataError):
    """A request that contradicts itself, such as the same setting twice."""


class UnknownBroker(MetadataError):
    def __init__(self, node_id: int) -> None:
        super().__init__(f"there is no broker {node_id}")
        self.node_id = node_id


class UnknownPartition(MetadataError):
    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"there is no partition {topic}-{partition}")
        self.topic = topic
        self.partition = partition


class ElectionNotNeeded(MetadataError):
    """The partition is led as it was asked for already."""


class PreferredLeaderUnavailable(MetadataError):
    """The first replica of the partition is not in sync, or not there."""


class NoEligibleLeader(MetadataError):
    """No replica of the partition is there that could lead it."""


class NoReassignment(MetadataError):
    """A move cannot be cancelled, because the partition does not move."""


class BrokerAlive(MetadataError):
    def __init__(self, node_id: int) -> None:
        super().__init__(f"broker {node_id} is running: stop it first, or it would come back at once")
        self.node_id = node_id


class NotAMember(MetadataError):
    def __init__(self, node_id: int) -> None:
        super().__init__(f"no broker {node_id} belongs to the cluster")
        self.node_id = node_id


# Security.


class InvalidSecurityChange(MetadataError):
    """A role, quota or tenant that cannot be, or not beside the others."""


class RoleExists(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is a role {name!r} already")
        self.name = name


class UnknownRole(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no role {name!r}")
        self.name = name


class TenantExists(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is a tenant {name!r} already")
        self.name = name


class UnknownTenant(MetadataError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no tenant {name!r}")
        self.name = name


class UnknownCredential(MetadataError):
    def __init__(self, user: str, mechanism: str) -> None:
        super().__init__("Attempt to delete a user credential that does not exist")
        self.user = user
        self.mechanism = mechanism


class TokenExists(MetadataError):
    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is a delegation token {token_id} already")
        self.token_id = token_id


class UnknownToken(MetadataError):
    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no delegation token {token_id}")
        self.token_id = token_id


# Between brokers.


class StaleState(MetadataError):
    """A partition has changed since its leader decided something about it, or has another leader now."""


class IneligibleReplica(MetadataError):
    """A replica that cannot be in sync: it is not there, about to stop, or has started again since."""


# Identity of broker and cluster.


class ClusterMismatch(MetadataError):
    """The data directory and the metadata store belong to different clusters."""

    def __init__(self, *, stored: str, found: str, where: str) -> None:
        super().__init__(
            f"{where} belongs to the cluster {found!r}, but the metadata store is of the cluster {stored!r}: "
            "one of the two was moved here from somewhere else"
        )
        self.stored = stored
        self.found = found


class NodeIdMismatch(MetadataError):
    """A data directory was written by a broker with another node.id."""


class NodeIdInUse(MetadataError):
    def __init__(self, node_id: int, incarnation: str) -> None:
        super().__init__(f"node.id {node_id} is registered by another broker that is alive ({incarnation})")
        self.node_id = node_id


# The store.


class Conflict(MetadataError):
    """A commit's comparison did not hold: somebody else changed one of the keys. Decide again."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"somebody else changed one of {', '.join(keys)}")
        self.keys = tuple(keys)


class StoreUnavailable(MetadataError):
    """The store did not answer. The change may or may not have happened."""


class StoreRefused(StoreUnavailable):
    """The store refused a call, or failed in it. `status` is its word for why."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class TenantPartitionsExceeded(MetadataError):
    """A tenant would have more partitions than it may have."""


class StoreDamaged(MetadataError):
    """The embedded store cannot be trusted. Never a reason to delete a log."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(
            f"the metadata store {path} is damaged: {detail}. The logs are untouched. Restore the file from "
            f"a backup, or move it away and start again: topics, ids and partitions are then taken from the "
            f"data directories, while topic and broker settings made at run time are lost"
        )
        self.path = path


class StoreWentBack(MetadataError):
    """The store's revision is lower than one that was seen: it was replaced or restored under us."""

    def __init__(self, *, seen: int, found: int) -> None:
        super().__init__(f"the metadata store went back from revision {seen} to {found}")
        self.seen = seen
        self.found = found


class WatchLost(MetadataError):
    """Changes after the asked revision are no longer known one by one: load everything again."""

    def __init__(self, after_revision: int, oldest: int) -> None:
        super().__init__(f"changes after revision {after_revision} are gone, the oldest kept is {oldest}")
        self.after_revision = after_revision
        self.oldest = oldest


class LeaseExpired(MetadataError):
    def __init__(self, lease_id: int) -> None:
        super().__init__(f"lease {lease_id} has expired or was revoked")
        self.lease_id = lease_id


class TooManyConflicts(MetadataError):
    """A change lost the race for its keys again and again."""
