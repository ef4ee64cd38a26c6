"""Images made step by step and in one go are equal: a restart ends where the live broker was."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.ids import NodeId
from millrace.core.persistent_map import PersistentMap
from millrace.metadata.batching import decide_all
from millrace.metadata.commands import (
    AllocateProducerIds,
    Alteration,
    AlterConfigs,
    AlterOperation,
    BrokerResource,
    Command,
    ConfirmDeletion,
    CreatePartitions,
    DeleteTopic,
    Policy,
    RegisterBroker,
    TopicResource,
    UnregisterBroker,
)
from millrace.metadata.fold import fold, image_of
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.store import ChangeBatch, KeyChange, Snapshot, Versioned
from tests.unit.metadata.worlds import apply, broker, new_topic, topic_id

NAMES = st.sampled_from(["a", "a.b", "a_b", "orders"])
NUMBERS = st.integers(1, 6)
SETTING = Alteration("retention.ms", AlterOperation.SET, "1000")
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(lambda name, number, count: new_topic(name, number, partitions=count), NAMES, NUMBERS, NUMBERS),
    st.builds(DeleteTopic, NAMES),
    st.builds(lambda name, count: CreatePartitions(name=name, count=count), NAMES, NUMBERS),
    st.builds(lambda name: AlterConfigs(TopicResource(name), [SETTING]), NAMES),
    st.builds(
        lambda node, operation: AlterConfigs(
            BrokerResource(node), [Alteration("log.retention.ms", operation, "5")]
        ),
        st.sampled_from([None, NodeId(1)]),
        st.sampled_from([AlterOperation.SET, AlterOperation.DELETE]),
    ),
    st.builds(lambda number: ConfirmDeletion(topic_id(number), NodeId(1)), NUMBERS),
    st.just(AllocateProducerIds(10)),
    st.just(RegisterBroker(broker(2), None)),
    st.just(UnregisterBroker(NodeId(2), "first")),
)


class Model:
    """A store of dicts, with the image that follows it change by change."""

    def __init__(self) -> None:
        self.entries: dict[str, Versioned] = {}
        self.image = EMPTY

    def submit(self, commands: list[Command], *, operations_max: int) -> None:
        done = 0
        while done < len(commands):
            batch = decide_all(
                self.image,
                commands,
                Policy(),
                first=done,
                operations_max=operations_max,
                outcome_of=lambda place, before, after: None,
            )
            for step in batch.steps:
                assert len(step.puts) + len(step.deletes) <= max(operations_max, 4)
                self._commit(
                    [*((put.key, put.value) for put in step.puts), *((key, None) for key in step.deletes)]
                )
            done += len(batch.outcomes)

    def _commit(self, changes: list[tuple[str, bytes | None]]) -> None:
        revision = self.image.revision + 1
        for key, value in changes:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = Versioned(value, revision)
        reported = tuple(KeyChange(key, value, revision) for key, value in changes)
        self.image = fold(self.image, ChangeBatch(revision, reported))


def differences(one: Image, other: Image) -> list[str]:
    unequal = []
    for field in fields(Image):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, PersistentMap):
            left, right = dict(left), dict(right)
        if field.name != "topology_revision" and left != right:
            unequal.append(field.name)
    return unequal


@settings(max_examples=150)
@given(st.lists(COMMANDS, max_size=25), st.sampled_from([2, 5, 1_000]))
def test_live_and_reloaded_images_are_equal(commands: list[Command], operations_max: int) -> None:
    model = Model()
    model.submit([RegisterBroker(broker(1), None)], operations_max=1_000)
    model.submit(commands, operations_max=operations_max)
    image = model.image
    assert differences(image, image_of(Snapshot(image.revision, model.entries))) == []
    assert {topic.topic_id: topic for topic in image.topics.values()} == dict(image.topics_by_id)
    assert len(image.unclaimed) == 0
    for topic in image.topics.values():
        assert topic.partitions


def test_partitions_count_only_once_the_topic_record_names_them() -> None:
    # A large topic may take several transactions; nobody must see half of it.
    model = Model()
    model.submit([RegisterBroker(broker(1), None)], operations_max=1_000)
    batch = decide_all(
        model.image,
        [new_topic("large", 1, partitions=10)],
        Policy(),
        operations_max=4,
        outcome_of=lambda place, before, after: None,
    )
    assert [len(step.puts) for step in batch.steps] == [4, 4, 3, 1], "and the record of its beginning"
    seen = []
    for step in batch.steps:
        model._commit([(put.key, put.value) for put in step.puts])
        topic = model.image.topics.get("large")
        seen.append(0 if topic is None else len(topic.partitions))
    assert seen == [0, 0, 0, 10]
    assert len(model.image.unclaimed) == 0


def test_commands_of_one_batch_see_each_other() -> None:
    outcomes = decide_all(
        apply(EMPTY, RegisterBroker(broker(1), None)),
        [
            new_topic("orders", 1),
            new_topic("orders", 2),
            CreatePartitions(name="orders", count=4),
            DeleteTopic(name="orders"),
            new_topic("orders", 3),
        ],
        Policy(),
        operations_max=1_000,
        outcome_of=lambda place, before, after: len(after.topics),
    )
    assert [
        outcome if isinstance(outcome, int) else type(outcome).__name__ for outcome in outcomes.outcomes
    ] == [
        1,
        "TopicExists",
        1,
        0,
        1,
    ]
    (step,) = outcomes.steps
    keys = [put.key for put in step.puts] + list(step.deletes)
    assert len(set(keys)) == len(keys)
    assert {compare.mod_revision for compare in step.compares} == {0}


def test_what_a_newer_version_wrote_is_no_obstacle() -> None:
    image = fold(EMPTY, ChangeBatch(1, (KeyChange("something_new/1", b"\xff", 1),)))
    assert image.revision == 1
