"""One member of a classic group, as the coordinator knows it at the moment, and what is stored of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.coordinator.decision import Decision, Token
from millrace.groups.commands import Join, Protocol
from millrace.wire.messages.group_records import MemberMetadata


@dataclass(slots=True, kw_only=True)
class Member:
    """What a member has told, what it was assigned, and which of its requests wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """In the member's order of preference."""
    assignment: bytes = b""
    join_token: Token | None = None
    """The member's JoinGroup that waits for the next generation."""
    sync_token: Token | None = None
    """The member's SyncGroup that waits for the leader's assignment."""
    is_new: bool = False
    """Whether it has not had an answer yet, so that it cannot send heartbeats."""
    last_heartbeat_ms: int = -1
    last_commit_ms: int = -1
    alive: Decision[object] | None = field(default=None, compare=False, repr=False)
    """What a sign of life leads to while nothing changes, made once for its session time-out: thousands of
    members give one every few seconds."""

    @classmethod
    def joining(cls, member_id: str, join: Join, now_ms: int) -> Member:
        """The member that a JoinGroup tells of."""
        return cls(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=tuple(join.protocols),
            last_heartbeat_ms=now_ms,
        )

    def update(self, join: Join) -> None:
        """Take over what the member tells when it joins again."""
        self.protocols = tuple(join.protocols)
        self.session_timeout_ms = join.session_timeout_ms
        self.alive = None
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.client_id = join.client_id
        self.client_host = join.client_host

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    # What is stored.

    def stored(self, protocol: str | None) -> MemberMetadata:
        """The member's part of a generation's record, which has room for the metadata of one protocol."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata_for(protocol),
            assignment=self.assignment,
        )

    @classmethod
    def restored(cls, value: MemberMetadata, protocol: str | None) -> Member:
        """The member of a record."""
        has_own_timeout = value.rebalance_timeout >= 0
        return cls(
            member_id=value.member_id,
            instance_id=value.group_instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            session_timeout_ms=value.session_timeout,
            rebalance_timeout_ms=value.rebalance_timeout if has_own_timeout else value.session_timeout,
            protocols=(Protocol(protocol or "", value.subscription),),
            assignment=value.assignment,
        )
