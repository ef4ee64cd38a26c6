"""Who belongs to a classic group: its members, who leads them, who is expected, and what they have in common.

The group decides who comes and goes; the roster keeps its tables in step with each other.
"""

from __future__ import annotations

from typing import Final

from millrace.groups.classic.member import Member
from millrace.groups.classic.subscriptions import subscribed_topics

NO_TOPICS: Final[frozenset[str]] = frozenset()


class Roster:
    """The members of one group, and those who may become members."""

    __slots__ = ("leader", "members", "pending_joins", "pending_syncs", "static_members")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        """The members in the order of joining, which assignors and elections see."""
        self.static_members: dict[str, str] = {}
        """The member id of each instance id."""
        self.leader: str | None = None
        self.pending_joins: dict[str, None] = {}
        """Ids given out to members that have not joined with them yet."""
        self.pending_syncs: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment yet."""

    # Coming and going.

    def add(self, member: Member) -> None:
        """Add a new member; it leads if nobody does."""
        self.pending_joins.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def replace(self, old: Member, new: Member) -> None:
        """Give `new` the place of `old`: its turn in the order, its instance id, and the lead."""
        assert old.instance_id is not None
        assert old.instance_id == new.instance_id, (old, new)
        members = list(self.members.values())
        self.members.clear()
        for each in members:
            kept = new if each is old else each
            self.members[kept.member_id] = kept
        self.static_members[old.instance_id] = new.member_id
        if old.member_id in self.pending_syncs:
            del self.pending_syncs[old.member_id]
            self.pending_syncs[new.member_id] = None
        if self.leader == old.member_id:
            self.leader = new.member_id

    def remove(self, member_id: str) -> Member | None:
        """Forget an id, whether a member has it or it was only given out; returns the member, if any."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member that has this instance id at present."""
        known_as = None if instance_id is None else self.static_members.get(instance_id)
        return None if known_as is None else self.members[known_as]

    # Rebalancing.

    @property
    def joined_count(self) -> int:
        """How many members wait for the next generation."""
        return sum(1 for member in self.members.values() if member.join_token is not None)

    @property
    def is_complete(self) -> bool:
        """Whether everybody who is expected has joined."""
        return not self.pending_joins and self.joined_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time-out that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first who has; False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    # What the members have in common.

    def common_protocols(self) -> dict[str, None]:
        """The names that all members offer, in the order of the oldest member's preference."""
        members = list(self.members.values())
        first = dict.fromkeys(offered.name for offered in members[0].protocols) if members else {}
        for member in members[1:]:
            offered = {each.name for each in member.protocols}
            first = {name: None for name in first if name in offered}
        return first

    def preferred_protocol(self) -> str | None:
        """The protocol that all members support and most prefer; in a draw, the oldest member decides."""
        votes = dict.fromkeys(self.common_protocols(), 0)
        for member in self.members.values():
            for offered in member.protocols:
                if offered.name in votes:
                    votes[offered.name] += 1
                    break
        return max(votes, key=lambda name: votes[name], default=None)

    def topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that consumers are subscribed to; None where the broker cannot know them."""
        if not self.members:
            return NO_TOPICS
        if protocol is None:
            return None
        return subscribed_topics(member.metadata_for(protocol) for member in self.members.values())
