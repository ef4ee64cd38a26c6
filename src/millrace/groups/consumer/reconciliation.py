"""How one member gets to its target, step by step: first it gives partitions up, then it gets what others
have released.

No partition is ever given to a member while somebody else may still consume it. A member that has to give
partitions up stays in its epoch until it no longer reports them as owned; those that are to get them wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from millrace.core.ids import TopicId
from millrace.groups.consumer.member import MemberState
from millrace.groups.effects import Effects
from millrace.groups.errors import FencedMemberEpoch

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import SupportsRichComparison

Place = TypeVar("Place", bound="SupportsRichComparison")
"""What has numbered parts that members own: a topic with its partitions, or tasks of one kind."""

Owned = Sequence[tuple[TopicId, Sequence[int]]] | None
"""What a member says it owns; None if that is the same as before."""


class Reconciled(Protocol[Place]):
    """A member on its way to its target. It never changes, but is replaced."""

    @property
    def member_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def previous_epoch(self) -> int: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...
    @property
    def state(self) -> MemberState: ...
    @property
    def assigned(self) -> Mapping[Place, Mapping[int, int]]: ...
    @property
    def revoking(self) -> Mapping[Place, Mapping[int, int]]: ...

    def with_epoch(
        self,
        epoch: int,
        state: MemberState,
        assigned: Mapping[Place, Mapping[int, int]],
        revoking: Mapping[Place, Mapping[int, int]] = ...,
    ) -> Self: ...


Member = TypeVar("Member", bound=Reconciled[Any])


class Reconciliation(Generic[Place, Member]):
    """One step of one member towards the target of an epoch."""

    def __init__(
        self,
        member: Member,
        *,
        target_epoch: int,
        target: Mapping[Place, frozenset[int]],
        owner_of: Callable[[Place, int], str | None],
        owned: Sequence[tuple[Place, Sequence[int]]] | None,
        subscribed: Collection[Place],
    ) -> None:
        self._member = member
        self._target_epoch = target_epoch
        self._target = target
        self._owner_of = owner_of
        self._owned = owned
        self._subscribed = subscribed

    def step(self, *, has_subscription_changed: bool) -> Member:
        """The member after this step; the same object if it cannot get any further now."""
        member = self._member
        match member.state:
            case MemberState.STABLE:
                if member.epoch != self._target_epoch:
                    return self._approach(member.epoch)
                return self._drop_unsubscribed() if has_subscription_changed else member
            case MemberState.UNREVOKED_PARTITIONS:
                if not self._still_owns(member.revoking):
                    return self._approach(member.epoch)
                return self._drop_unsubscribed() if has_subscription_changed else member
            case MemberState.UNRELEASED_PARTITIONS:
                return self._approach(member.epoch)
            case MemberState.UNKNOWN:
                if self._owned is None or self._owned:
                    raise FencedMemberEpoch(member.member_id, member.epoch, current=self._target_epoch)
                return self._approach(self._target_epoch)

    def _still_owns(self, partitions: Mapping[Place, Mapping[int, int]]) -> bool:
        """Whether the member still owns some of these; without a word on that, it has given nothing up."""
        if self._owned is None:
            return True
        return any(
            partition in partitions.get(topic, ()) for topic, owned in self._owned for partition in owned
        )

    def _approach(self, epoch: int) -> Member:
        member = self._member
        kept: dict[Place, Mapping[int, int]] = {}
        given_up: dict[Place, Mapping[int, int]] = {}
        gained: dict[Place, list[int]] = {}
        is_waiting = False
        for topic in sorted({*self._target, *member.assigned}):
            wanted = self._target.get(topic, frozenset()) if topic in self._subscribed else frozenset[int]()
            present = member.assigned.get(topic, {})
            if present:
                keeps = {p: since for p, since in present.items() if p in wanted}
                if keeps:
                    kept[topic] = keeps
                if len(keeps) < len(present):
                    given_up[topic] = {p: since for p, since in present.items() if p not in wanted}
            for partition in sorted(wanted):
                if partition in present:
                    continue
                if self._owner_of(topic, partition) in (None, member.member_id):
                    gained.setdefault(topic, []).append(partition)
                else:
                    is_waiting = True
        if given_up and self._still_owns(given_up):
            return member.with_epoch(epoch, MemberState.UNREVOKED_PARTITIONS, kept, given_up)
        for topic, partitions in gained.items():
            kept[topic] = {**kept.get(topic, {}), **dict.fromkeys(partitions, self._target_epoch)}
        state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
        after = member.with_epoch(self._target_epoch, state, kept)
        if state is member.state and member.epoch == self._target_epoch and kept == member.assigned:
            # The member still waits for the same partitions: there is nothing to store.
            return member
        return after

    def _drop_unsubscribed(self) -> Member:
        """Give up what a narrowed subscription does not want, before the next target is known."""
        member = self._member
        kept = {topic: epochs for topic, epochs in member.assigned.items() if topic in self._subscribed}
        if len(kept) == len(member.assigned):
            return member
        dropped = {topic: epochs for topic, epochs in member.assigned.items() if topic not in kept}
        revoking = dict(member.revoking)
        for topic, epochs in dropped.items():
            revoking[topic] = {**revoking.get(topic, {}), **epochs}
        if self._still_owns(revoking):
            return member.with_epoch(member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        return member.with_epoch(member.epoch, member.state, kept, member.revoking)


def check_epoch(
    member: Reconciled[Place], epoch: int, owned: Sequence[tuple[Place, Sequence[int]]] | None
) -> None:
    """Raise FencedMemberEpoch if a member's heartbeat has an epoch that it cannot have."""
    if epoch == member.epoch:
        return
    # The answer with the new epoch may have been lost. Then the member owns no more than that answer left it.
    has_no_more = owned is not None and all(
        number in member.assigned.get(place, ()) for place, numbers in owned for number in numbers
    )
    if epoch != member.previous_epoch or epoch > member.epoch or not has_no_more:
        raise FencedMemberEpoch(member.member_id, epoch, current=member.epoch)


def time_revocation(
    group_id: str, member: Reconciled[Place], out: Effects, expiry: Callable[[str, str, int], object]
) -> None:
    """Give a member its rebalance time-out to give up what it must, or take the time-out back. `expiry` makes
    the command for its end, of group, member and epoch."""
    timer = ("revocation", group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        expired = expiry(group_id, member.member_id, member.epoch)
        out.set_timer(timer, member.rebalance_timeout_ms, expired)
    else:
        out.cancel_timer(timer)
