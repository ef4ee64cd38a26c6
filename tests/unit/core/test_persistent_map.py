from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.persistent_map import PersistentMap

KEYS = st.text(alphabet="abcdef", max_size=3)
EDITS = st.lists(st.tuples(st.dictionaries(KEYS, st.integers(), max_size=5), st.lists(KEYS, max_size=5)))


@given(EDITS)
def test_it_is_a_dict_whose_old_versions_stay(edits: list[tuple[dict[str, int], list[str]]]) -> None:
    present: PersistentMap[str, int] = PersistentMap()
    expected: dict[str, int] = {}
    versions = [(present, dict(expected))]
    for puts, removals in edits:
        present = present.updated(puts, removals)
        for key in removals:
            expected.pop(key, None)
        expected.update(puts)
        versions.append((present, dict(expected)))
    for version, content in versions:
        assert dict(version) == content
        assert len(version) == len(content)
        assert all(key in version and version[key] == value for key, value in content.items())
        assert "absent" not in version
        assert version.get("absent") is None


@given(st.dictionaries(KEYS, st.integers(0, 3)), st.dictionaries(KEYS, st.integers(0, 3)))
def test_a_difference_tells_how_one_becomes_the_other(before: dict[str, int], after: dict[str, int]) -> None:
    old = PersistentMap(before.items())
    for new in (
        PersistentMap(after.items()),
        old.updated(after, [key for key in before if key not in after]),
    ):
        added, changed, removed = old.difference(new)
        assert {
            **{key: value for key, value in before.items() if key not in removed},
            **added,
            **changed,
        } == after
        assert not added.keys() & before.keys()
        assert all(before[key] != value for key, value in changed.items())
        assert removed == {key: value for key, value in before.items() if key not in after}


def test_a_change_of_one_entry_copies_little_of_many() -> None:
    # 10,000 topics created one by one must not copy 10,000 entries each time.
    large = PersistentMap((f"topic-{number}", number) for number in range(10_000))
    changed = large.updated({"topic-5": -1})
    copied = [new for old, new in zip(large._buckets, changed._buckets, strict=True) if old is not new]
    assert len(copied) == 1
    assert len(copied[0]) < 500
    assert len(large._buckets) < 500


def test_it_grows_and_shrinks_with_its_content() -> None:
    present: PersistentMap[str, int] = PersistentMap()
    for number in range(5_000):
        present = present.updated({str(number): number})
    grown = len(present._buckets)
    for number in range(5_000):
        present = present.updated({}, [str(number)])
    assert grown > 16
    assert len(present._buckets) < grown
    assert dict(present) == {}
