"""The index holds exactly what a set of permissions would, shares what did not change, and finds by few
steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.persistent_map import PersistentMap
from millrace.security.acls.binding import Acl, Operation, PatternType, ResourceType
from millrace.security.acls.filters import EVERYTHING, AclFilter
from millrace.security.acls.index import EMPTY_ACLS, SMALL_MAX, AclIndex
from tests.unit.security.acls import models
from tests.unit.security.acls.models import NAMES, acl, deny

batches = st.lists(
    st.tuples(st.lists(models.acls, max_size=5), st.lists(models.acls, max_size=5)), max_size=5
)


@settings(max_examples=80)
@given(batches)
def test_an_index_changed_step_by_step_holds_what_a_set_would(
    steps: list[tuple[list[Acl], list[Acl]]],
) -> None:
    index, model = EMPTY_ACLS, set[Acl]()
    for added, removed in steps:
        before = set(index)
        changed = index.updated(added, removed)
        model = (model - set(removed)) | set(added)
        assert set(index) == before, "the old index has changed"
        index = changed
        assert list(index) == list(dict.fromkeys(index)), "a permission twice"
        assert set(index) == model
        assert len(index) == len(model)
        assert index == AclIndex(model)
        assert all(found in index for found in model)
        assert not any(found in index for found in removed if found not in model)
    for resource_type in models.TYPES:
        of_type = index.of_type(resource_type)
        lengths = {
            len(found.name)
            for found in model
            if found.resource_type is resource_type and found.pattern is PatternType.PREFIXED
        }
        assert (list(of_type.lengths) if of_type else []) == sorted(lengths, reverse=True)


@settings(max_examples=80)
@given(
    st.lists(models.acls, max_size=30),
    st.builds(
        AclFilter,
        resource_type=st.sampled_from([ResourceType.ANY, *models.TYPES]),
        name=st.sampled_from([None, "*", *NAMES]),
        pattern=st.sampled_from([found for found in PatternType if found is not PatternType.UNKNOWN]),
        principal=st.sampled_from([None, "User:me", "User:nobody"]),
    ),
)
def test_a_filter_finds_what_a_walk_over_everything_finds(everything: list[Acl], wanted: AclFilter) -> None:
    found = list(AclIndex(everything).matching(wanted))
    assert len(found) == len(set(found))
    assert set(found) == {each for each in everything if wanted.matches(each)}


def test_indexes_with_different_permissions_differ() -> None:
    one = AclIndex([acl("a"), acl("b")])
    assert one != AclIndex([acl("a"), acl("c")])
    assert one != AclIndex([acl("a")])
    assert one != "something else"
    assert "2 permissions" in repr(one)


def test_names_that_run_into_each_other_are_kept_apart() -> None:
    """The principal `User:a1` from everywhere is not `User:a` from a host `1*`."""
    index = AclIndex([acl("t", principal="User:a1", host="*")])
    assert acl("t", principal="User:a", host="1*") not in index
    assert len(index.updated([acl("t", principal="User:a", host="1*")])) == 2


def many(count: int) -> list[Acl]:
    """Of all shapes: many names, many principals of one name, many prefixes."""
    third = count // 3
    return [
        *(acl(f"topic-{number}", principal=f"User:{number % 50}") for number in range(third)),
        *(acl("*", principal=f"User:{number}") for number in range(third)),
        *(
            deny(f"team-{number % 1000}...", principal=f"User:{number}")
            for number in range(count - 2 * third)
        ),
    ]


@contextmanager
def counted_lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The keys that are looked up in persistent maps meanwhile."""
    looked_up: list[str] = []
    real = PersistentMap.get

    def get(self: PersistentMap[str, object], key: str, default: object = None) -> object:
        looked_up.append(key)
        return real(self, key, default)

    with monkeypatch.context() as patched:
        patched.setattr(PersistentMap, "get", get)
        yield looked_up


def test_what_covers_a_name_is_found_by_a_handful_of_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for size in (300, 9_000):
        of_topics = AclIndex(many(size)).of_type(ResourceType.TOPIC)
        assert of_topics is not None
        with counted_lookups(monkeypatch) as looked_up:
            found = list(of_topics.covering("team-7-orders"))
        assert len(found) == 2
        counts.append(len(looked_up))
    assert counts[1] <= 8, "name, wildcard, and one for each length of a prefix"


def test_one_permission_more_copies_a_small_part_of_many() -> None:
    """Counted in objects that the new index does not share with the old one."""
    index = AclIndex(many(9_000))
    changed = index.updated([acl("a-new-topic", Operation.WRITE, "User:new")], [acl("*", principal="User:3")])
    assert len(changed) == len(index)
    before, after = index.of_type(ResourceType.TOPIC), changed.of_type(ResourceType.TOPIC)
    assert before is not None
    assert after is not None
    assert after.prefixed is before.prefixed
    copied = sum(
        len(new)
        for maps in ((before.literal, after.literal), (before.subjects, after.subjects))
        for old, new in zip(maps[0]._buckets, maps[1]._buckets, strict=True)
        if old is not new
    )
    assert copied < 500, "out of 9,000"
    everybody = after.literal["*"]
    assert isinstance(everybody, PersistentMap)
    assert len(everybody) == 2_999


def test_a_pattern_with_many_grants_becomes_small_again() -> None:
    crowd = [acl("*", principal=f"User:{number}") for number in range(SMALL_MAX * 2)]
    index = AclIndex(crowd)
    of_topics = index.updated(removed=crowd[2:]).of_type(ResourceType.TOPIC)
    assert of_topics is not None
    assert isinstance(of_topics.literal["*"], dict)
    assert index.updated(removed=crowd).of_type(ResourceType.TOPIC) is None
    assert list(index.updated(removed=crowd).matching(EVERYTHING)) == []
