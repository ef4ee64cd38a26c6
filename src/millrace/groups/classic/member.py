"""One member of a classic group, as the coordinator knows it at the moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.coordinator.decision import Decision, Token
from millrace.groups.commands import Protocol


@dataclass(slots=True, kw_only=True)
class Member:
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
    """Its JoinGroup that waits for the next generation."""
    sync_token: Token | None = None
    """Its SyncGroup that waits for the leader's assignment."""
    is_new: bool = False
    """Has not had an answer yet, so it cannot send heartbeats."""
    last_heartbeat_ms: int = -1
    last_commit_ms: int = -1
    alive: Decision[object] | None = field(default=None, compare=False, repr=False)
    """What a sign of life leads to while nothing changes, made once for its session time-out: thousands of
    members give one every few seconds."""

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    def offers(self, protocol: str) -> bool:
        return any(offered.name == protocol for offered in self.protocols)
