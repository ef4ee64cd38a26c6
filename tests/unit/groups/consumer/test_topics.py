"""The topics as groups see them: a number that stands for their shapes, the same in every process."""

from __future__ import annotations

from millrace.groups.assignors import TopicShape
from millrace.groups.consumer.topics import ConsumerTopics
from tests.unit.groups.consumer_lab import Lab


def world() -> tuple[Lab, ConsumerTopics]:
    lab = Lab()
    return lab, ConsumerTopics(lambda: lab.image)


def test_names_and_ids_are_those_of_topics_that_exist() -> None:
    lab, topics = world()
    t = lab.set_topic("t", 2)
    assert (topics.id_of("t"), topics.name_of(t), topics.id_of("absent")) == (t, "t", None)
    assert topics.ids_of(["t", "absent"]) == frozenset({t})
    lab.delete_topic("t")
    assert topics.name_of(t) is None
    assert topics.shapes_of(["t"]) == {}


def test_the_hash_changes_with_everything_that_assignments_depend_on() -> None:
    lab, topics = world()
    seen = [topics.hash_of(["t"])]
    assert seen == [0], "nothing is there"
    lab.set_topic("t", 2)
    seen.append(topics.hash_of(["t"]))
    assert topics.hash_of(["t", "absent"]) == seen[-1], "what is not there does not count"
    lab.set_topic("t", 3)
    seen.append(topics.hash_of(["t"]))
    lab.set_topic("t", 3, is_new=True)
    seen.append(topics.hash_of(["t"]))
    lab.set_racks({0: "a", 1: "b", 2: "c"})
    seen.append(topics.hash_of(["t"]))
    lab.set_topic("u", 1)
    assert topics.hash_of(["t"]) == seen[-1], "a topic that nobody asked about does not count"
    seen.append(topics.hash_of(["t", "u"]))
    assert len(set(seen)) == len(seen)
    assert topics.hash_of(["u", "t"]) == seen[-1]
    assert ConsumerTopics(lambda: lab.image).hash_of(["t", "u"]) == seen[-1], "it is worked out, not counted"


def test_shapes_follow_the_racks_of_the_brokers() -> None:
    lab, topics = world()
    t = lab.set_topic("t", 4)
    assert topics.shapes_of(["t", "absent"]) == {t: TopicShape(4)}
    lab.set_racks({0: "a", 1: "b"})
    racks = (frozenset({"a"}), frozenset({"b"}), frozenset[str](), frozenset({"a"}))
    assert topics.shapes_of(["t"]) == {t: TopicShape(4, racks)}
