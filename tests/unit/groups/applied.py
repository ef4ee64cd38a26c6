"""What `apply` alone may change in the groups of a partition: no decision may, whatever it is about."""

from __future__ import annotations

from millrace.coordinator.decision import Decision
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.machine import GroupMachine


def decided(machine: GroupMachine, command: object, now_ms: int, token: int) -> Decision[object]:
    """The machine's decision, which must have left alone what records tell."""
    before = applied_state(machine)
    decision = machine.decide(command, now_ms, token)
    after = applied_state(machine)
    assert after == before, f"{command} was decided and has changed {before} to {after}"
    return decision


def applied_state(machine: GroupMachine) -> dict[str, str]:
    """As text, which a later change cannot reach. Groups that nobody has stored are not in it."""
    state = {"offsets": repr(machine.offsets.by_group), "pending": repr(machine.offsets.pending)}
    for group_id, group in machine.groups.items():
        if isinstance(group, ConsumerGroup):
            state[f"group {group_id}"] = repr(
                (
                    (group.epoch, group.metadata_hash, group.assignment_epoch, group.assigned_at_ms),
                    (group.members, group.static_members, group.target, group.owners),
                    (group.patterns, group.has_partition_metadata),
                )
            )
        elif isinstance(group, ClassicGroup) and group.stored is not None:
            state[f"group {group_id}"] = repr(group.stored)
    return state
