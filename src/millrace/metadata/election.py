"""Who leads a partition and who is in sync: takes one partition's state and the brokers that are there, and
gives its next state. No I/O.

This holds after every step, whatever happens: a leader epoch has one leader; a leader comes from the ISR,
from the eligible replicas, or is the last leader coming back when neither has anybody, and anybody else only
where unclean elections are allowed; epochs only grow. Nobody leads exactly while the ISR is empty.

Why eligible replicas are safe (KIP-966): a replica becomes one only while the ISR is smaller than
min.insync.replicas, and then the high watermark does not move. So it holds everything below it. Where one
replica in sync is enough, that protects nobody: the last one left may be registered and yet be gone, and come
back without what it had not flushed. So only that last one takes the others out of the ISR, which proves that
it is there (`is_left_to_leader`). Until then nothing is committed without the others, and any of them that
comes back intact may lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.core.ids import Epoch, NodeId
from millrace.metadata.image import NO_LEADER, Image, PartitionState


class Standing(NamedTuple):
    """The brokers that elections may count on; only ever asked for membership."""

    live: frozenset[NodeId]
    willing: frozenset[NodeId]
    """Live and not about to stop."""


class ElectionRules(NamedTuple):
    """What a topic's settings say."""

    min_isr: int
    is_unclean_allowed: bool


def standing_of(image: Image, *, without: NodeId | None = None) -> Standing:
    """The brokers as the image has them; `without` counts as gone."""
    live = frozenset(node_id for node_id in image.brokers if node_id != without)
    return Standing(live, frozenset(node_id for node_id in live if node_id not in image.stopping))


def reduced(standing: Standing, offline: frozenset[NodeId]) -> Standing:
    """The standing in a partition of which these brokers cannot serve their replicas."""
    return Standing(standing.live - offline, standing.willing - offline) if offline else standing


def is_up_to_date(state: PartitionState, standing: Standing) -> bool:
    """Whether nothing needs to change: a quick check for the usual case, which is never wrongly true."""
    return (
        state.leader in state.isr
        and standing.willing.issuperset(state.isr)
        and not state.adding
        and not state.removing
    )


def is_left_to_leader(remaining_count: int, *, replica_count: int, min_isr: int) -> bool:
    """Whether only the leader may take others out of an ISR of which so many remain: if it would be alone,
    and nobody would stay eligible beside it."""
    return remaining_count == 1 and min(min_isr, replica_count) <= 1


def elect(
    state: PartitionState, standing: Standing, rules: ElectionRules, *, before: PartitionState | None = None
) -> PartitionState:
    """Take lost and stopping brokers out of the ISR, finish a reassignment that can be finished, and elect a
    leader if anybody may lead. The change is numbered as one of the state `before`, where another is
    given."""
    # A stopping broker stays as long as it is the last one.
    isr = _of(state.isr, standing.willing) or _of(state.isr, standing.live)
    if isr != state.isr and is_left_to_leader(
        len(isr), replica_count=len(state.replicas), min_isr=rules.min_isr
    ):
        # A reassignment that could end now ends when the leader has changed the ISR.
        (last,) = isr
        after = state if state.leader == last else state._replace(leader=last, last_leader=NO_LEADER)
    else:
        after = _with_isr(state, isr, rules)
        if after.adding or after.removing:
            after = _finish_reassignment(after, standing)
        after = _with_leader(after, standing, rules)
    return _advance(state if before is None else before, after)


def withdraw(
    state: PartitionState, node_id: NodeId, standing: Standing, rules: ElectionRules, *, is_empty: bool
) -> PartitionState:
    """As `elect`, without a replica that may have lost records (all of them, if `is_empty`): it is neither in
    sync nor eligible."""
    assert node_id not in standing.live, node_id
    changed = state._replace(isr=_but(state.isr, node_id), eligible=_but(state.eligible, node_id))
    if state.leader == node_id:
        changed = changed._replace(leader=NO_LEADER, last_leader=node_id)
    if is_empty and changed.last_leader == node_id:
        changed = changed._replace(last_leader=NO_LEADER)
    return elect(changed, standing, rules, before=state)


def elect_without(
    state: PartitionState, offline: frozenset[NodeId], standing: Standing, rules: ElectionRules
) -> PartitionState:
    """As `elect`, without replicas on failed disks: what they have may not be what they promised. The one
    that led last may lead again when its disk is back, if nobody else can be trusted."""
    changed = state._replace(
        isr=tuple(node_id for node_id in state.isr if node_id not in offline),
        eligible=tuple(node_id for node_id in state.eligible if node_id not in offline),
    )
    if state.leader in offline:
        changed = changed._replace(leader=NO_LEADER, last_leader=state.leader)
    return elect(changed, reduced(standing, offline), rules, before=state)


def alter_isr(
    state: PartitionState, isr: Sequence[NodeId], standing: Standing, rules: ElectionRules
) -> PartitionState:
    """Set the ISR as its leader wants it, and finish a reassignment that waited for that."""
    assert state.leader in isr, (state.leader, isr)
    in_order = tuple(node_id for node_id in state.replicas if node_id in isr)
    changed = _finish_reassignment(_with_isr(state, in_order, rules), standing)
    return _advance(state, _with_leader(changed, standing, rules))


def prefer(state: PartitionState, standing: Standing) -> PartitionState | None:
    """Let the first replica lead; None if it cannot lead now."""
    preferred = state.replicas[0]
    if preferred not in state.isr or preferred not in standing.willing:
        return None
    return _advance(state, state._replace(leader=preferred, last_leader=NO_LEADER))


def elect_any(state: PartitionState, standing: Standing, rules: ElectionRules) -> PartitionState | None:
    """Let any replica lead that is there, even if records are lost by that; None if nobody is there."""
    elected = elect(state, standing, rules._replace(is_unclean_allowed=True))
    return None if elected.leader == NO_LEADER else elected


def reassign(
    state: PartitionState, target: Sequence[NodeId], standing: Standing, rules: ElectionRules
) -> PartitionState:
    """Begin to move to these replicas, in this order, or give a move that is under way another target."""
    originals = [node_id for node_id in state.replicas if node_id not in state.adding]
    leaving = [node_id for node_id in state.replicas if node_id not in target]
    changed = state._replace(
        replicas=(*target, *leaving),
        adding=tuple(node_id for node_id in target if node_id not in originals),
        removing=tuple(leaving),
    )
    changed = _finish_reassignment(changed, standing)
    return _advance(state, _with_leader(changed, standing, rules))


def cancel_reassignment(
    state: PartitionState, standing: Standing, rules: ElectionRules
) -> PartitionState | None:
    """Go back to the replicas from before the move; None if none of those is in sync."""
    isr = tuple(node_id for node_id in state.isr if node_id not in state.adding)
    if not isr and state.isr:
        return None
    replicas = tuple(node_id for node_id in state.replicas if node_id not in state.adding)
    eligible = tuple(node_id for node_id in state.eligible if node_id in replicas)
    changed = state._replace(replicas=replicas, isr=isr, eligible=eligible, adding=(), removing=())
    return _advance(state, _with_leader(changed, standing, rules))


def _with_isr(state: PartitionState, isr: tuple[NodeId, ...], rules: ElectionRules) -> PartitionState:
    if len(isr) >= min(rules.min_isr, len(state.replicas)):
        return state._replace(isr=isr, eligible=())
    eligible = tuple(
        node_id
        for node_id in state.replicas
        if (node_id in state.isr or node_id in state.eligible) and node_id not in isr
    )
    return state._replace(isr=isr, eligible=eligible)


def _finish_reassignment(state: PartitionState, standing: Standing) -> PartitionState:
    if not state.adding and not state.removing:
        return state
    isr = tuple(node_id for node_id in state.isr if node_id not in state.removing)
    if any(node_id not in isr for node_id in state.adding) or not _of(isr, standing.live):
        return state
    replicas = tuple(node_id for node_id in state.replicas if node_id not in state.removing)
    eligible = tuple(node_id for node_id in state.eligible if node_id in replicas)
    return state._replace(replicas=replicas, isr=isr, eligible=eligible, adding=(), removing=())


def _with_leader(state: PartitionState, standing: Standing, rules: ElectionRules) -> PartitionState:
    if state.leader in state.isr:
        return state
    in_sync = _first(state.replicas, state.isr, standing)
    if in_sync is not None:
        return state._replace(leader=in_sync, last_leader=NO_LEADER)
    # All replicas in sync are gone, and become eligible: nobody is left who could move the high watermark.
    state = _with_isr(state, (), rules)
    elected = _first(state.replicas, state.eligible, standing)
    if elected is None and rules.is_unclean_allowed:
        elected = _first(state.replicas, state.replicas, standing)
    if elected is None and not state.eligible:
        # No replica can be trusted any more; the last leader at least had all that anybody was promised.
        elected = _first(state.replicas, (state.last_leader,), standing)
    if elected is None:
        last_leader = state.last_leader if state.leader == NO_LEADER else state.leader
        return state._replace(leader=NO_LEADER, last_leader=last_leader)
    if elected not in state.eligible:
        # The elected replica's log is the truth from now on, and nobody else's.
        state = state._replace(eligible=())
    led = state._replace(leader=elected, last_leader=NO_LEADER)
    if len(state.eligible) > 1 and is_left_to_leader(
        1, replica_count=len(state.replicas), min_isr=rules.min_isr
    ):
        # All eligible replicas have what the leader has, until it says that it goes on without them.
        return led._replace(isr=state.eligible, eligible=())
    return _with_isr(led, (elected,), rules)


def _first(order: Sequence[NodeId], candidates: Sequence[NodeId], standing: Standing) -> NodeId | None:
    """The first candidate that is willing, else the first that is there at all."""
    there = [node_id for node_id in order if node_id in candidates and node_id in standing.live]
    willing = [node_id for node_id in there if node_id in standing.willing]
    return next(iter(willing or there), None)


def _advance(before: PartitionState, after: PartitionState) -> PartitionState:
    """Number the change: a new leader, and replicas that must be kept out, begin a new epoch."""
    if after == before:
        return before
    is_new_epoch = after.leader != before.leader or any(
        node_id not in after.replicas for node_id in before.replicas
    )
    return after._replace(
        leader_epoch=Epoch(before.leader_epoch + is_new_epoch), partition_epoch=before.partition_epoch + 1
    )


def _of(nodes: tuple[NodeId, ...], allowed: frozenset[NodeId]) -> tuple[NodeId, ...]:
    return nodes if allowed.issuperset(nodes) else tuple(node for node in nodes if node in allowed)


def _but(nodes: tuple[NodeId, ...], node_id: NodeId) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node != node_id) if node_id in nodes else nodes
