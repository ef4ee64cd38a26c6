"""Many commands in few transactions: none too large, each decided on top of those before it."""

from __future__ import annotations

from millrace.core.ids import NodeId
from millrace.metadata import records
from millrace.metadata.batching import COMMANDS_MAX, decide_all, in_transactions
from millrace.metadata.commands import BeginStop, Policy
from millrace.metadata.errors import TopicExists
from millrace.metadata.image import Image
from millrace.metadata.leadership import assign_leaders
from millrace.metadata.store import Compare
from tests.unit.metadata.worlds import apply, cluster, new_topic


def topic_count(_place: int, _before: Image, after: Image) -> int:
    return len(after.topics)


def test_commands_are_decided_on_top_of_each_other() -> None:
    commands = [new_topic(name, number, partitions=1) for number, name in enumerate("aab", 1)]
    batch = decide_all(cluster("r"), commands, Policy(), operations_max=100, outcome_of=topic_count)
    first, second, third = batch.outcomes
    assert (first, third) == (1, 2)
    assert isinstance(second, TopicExists)
    (step,) = batch.steps
    assert {put.key for put in step.puts} >= {records.topic_key("a"), records.topic_key("b")}


def test_what_does_not_fit_is_left_for_the_next_batch() -> None:
    commands = [new_topic(name, number, partitions=3) for number, name in enumerate("abc", 1)]
    image = cluster("r")
    batch = decide_all(image, commands, Policy(), operations_max=10, outcome_of=topic_count)
    assert 0 < len(batch.outcomes) < 3
    (step,) = batch.steps
    assert len(step.puts) <= 10
    rest = decide_all(
        image, commands, Policy(), first=len(batch.outcomes), operations_max=10, outcome_of=topic_count
    )
    assert rest.outcomes


def test_no_batch_holds_up_the_loop() -> None:
    commands = [new_topic(f"t{number}", number, partitions=1) for number in range(1, COMMANDS_MAX + 50)]
    batch = decide_all(cluster("r"), commands, Policy(), operations_max=100_000, outcome_of=topic_count)
    assert len(batch.outcomes) == COMMANDS_MAX


def test_a_command_that_is_too_large_begins_with_a_record_of_its_own() -> None:
    """Its last transaction makes sure that nobody has given the whole up since the first."""
    command = new_topic("large", 1, partitions=25)
    batch = decide_all(cluster("r"), [command], Policy(), operations_max=10, outcome_of=topic_count)
    assert len(batch.steps) > 2
    key = records.creation_key(command.topic_id)
    assert key in {put.key for put in batch.steps[0].puts}
    with_compares = [step for step in batch.steps if step.compares]
    (last,) = with_compares
    assert last.begun_as == key
    assert key in last.deletes
    assert all(len(step.puts) + len(step.deletes) <= 10 + 1 for step in batch.steps)


def test_changes_of_partitions_share_transactions_up_to_the_limit() -> None:
    image = apply(cluster("a", "b"), new_topic("t", 1, assignments={at: [1, 2] for at in range(25)}))
    image = apply(image, BeginStop(NodeId(1), "first"))
    updates = assign_leaders(image, image.topics.values(), Policy())
    assert len(updates) == 25
    guard = Compare(records.CONTROLLER_KEY, 5)
    steps = list(in_transactions(updates, (guard,), operations_max=10))
    assert sum(len(step.puts) for step in steps) == 25
    for step in steps:
        assert step.compares[0] == guard
        assert len(step.compares) <= 10
        assert len(step.puts) <= 10
    assert list(in_transactions([], (guard,), operations_max=10)) == []
