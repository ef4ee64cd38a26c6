"""Share groups and delayed messages: with one guard of the broker taken out, the checkers must condemn the
run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.queues.dead_letters import DeadLetters, GivingUp
from millrace.broker.queues.delayed import store
from millrace.coordinator.runtime import Shard
from millrace.core.errors import MillraceError
from millrace.queues.delayed.codec import encode_added
from millrace.queues.delayed.model import DelayedRecord
from millrace.queues.share_partition.changes import DeadLetter
from millrace.queues.share_partition.ledger import Ledger
from millrace.queues.share_partition.partition import SharePartition
from millrace.queues.state.commands import WriteState
from millrace.queues.state.service import ShareState, WriteAnswer
from tests.sim.test_guards import condemned_for


def test_answering_acknowledgements_before_they_are_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ShareState.stage_write

    def answer_at_once(
        state: ShareState, shard: Shard, command: WriteState, answer: WriteAnswer
    ) -> MillraceError | bool:
        staged = original(state, shard, command, answer)
        if staged is True:
            answer.stored(None)
        return staged

    monkeypatch.setattr(ShareState, "stage_write", answer_at_once)
    found = condemned_for("C-F26-share-groups", seconds=40)
    assert "delivered after its end" in found, found


def test_locks_that_end_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SharePartition.expire

    def look_ahead(rules: SharePartition, now_ms: int) -> Any:
        return original(rules, now_ms + 3_900)

    deadline = SharePartition.next_deadline_ms

    def earlier(rules: SharePartition) -> int | None:
        found = deadline(rules)
        return None if found is None else found - 3_900

    monkeypatch.setattr(SharePartition, "expire", look_ahead)
    monkeypatch.setattr(SharePartition, "next_deadline_ms", earlier)
    found = condemned_for("F26-share-groups", seconds=20)
    assert {"two holders", "lost lock"} & set(found), found


def test_state_that_is_stored_in_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ledger.write

    def leave_runs_out(ledger: Ledger, **ranges: Any) -> Any:
        token, delta = original(ledger, **ranges)
        return token, delta._replace(batches=delta.batches[:-1])

    monkeypatch.setattr(Ledger, "write", leave_runs_out)
    found = condemned_for("F26-share-groups", seconds=20)
    assert "stored state" in found, found


def test_archiving_before_the_dead_letter_is_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(
        _letters: DeadLetters, share: GivingUp, letters: Sequence[DeadLetter], is_again: bool = False
    ) -> None:
        for letter in letters:
            share.dead_letter_written(letter.first_offset, letter.last_offset)

    monkeypatch.setattr(DeadLetters, "write", write_nothing)
    found = condemned_for("F27-dead-letters", seconds=20)
    assert "no dead letter" in found, found


def test_delivering_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def earlier(record: DelayedRecord, *, is_repeated: bool) -> Any:
        return encode_added(record._replace(due_ms=record.due_ms - 2_000), is_repeated=is_repeated)

    monkeypatch.setattr(store, "encode_added", earlier)
    found = condemned_for("delayed-messages", seconds=20)
    assert "early" in found, found
