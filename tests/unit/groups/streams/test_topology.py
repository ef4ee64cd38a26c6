"""What a topology says about its topics."""

from __future__ import annotations

import pytest

from millrace.groups.errors import InvalidTopology
from millrace.groups.streams.topology import Topology, internal_topics, named_topics, read_topics
from tests.unit.groups.streams.topologies import part, topology, word_count


def test_every_topic_has_the_subtopology_that_reads_it() -> None:
    found = Topology(word_count())
    assert found.subtopology_of == {"words": "0", "regrouped": "1"}
    assert found.required_topics == ("counts-changelog", "regrouped", "words")
    assert read_topics(found.subtopologies["1"]) == ["regrouped"]
    names = [each.name for each in internal_topics(found.subtopologies["1"])]
    assert names == ["regrouped", "counts-changelog"]
    assert named_topics(found.value) == ["words", "regrouped", "counts-changelog"]


def test_the_order_of_subtopologies_does_not_matter() -> None:
    first, second = part("0", ["a"]), part("1", ["b"])
    assert Topology(topology(first, second)) == Topology(topology(second, first))
    assert hash(Topology(topology(first))) == hash(Topology(topology(second)))
    assert Topology(topology(first)) != Topology(topology(second))
    assert Topology(topology(first)) != Topology(topology(first, epoch=1))
    assert Topology(topology(first)) != "a topology"


def test_two_subtopologies_of_one_id_are_refused() -> None:
    with pytest.raises(InvalidTopology, match="the same id"):
        _ = Topology(topology(part("0", ["a"]), part("0", ["b"]))).subtopologies
