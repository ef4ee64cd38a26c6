"""Filters of DescribeAcls and DeleteAcls, by example and against what covers a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.filters import EVERYTHING, AclFilter, InvalidAclFilter
from tests.unit.security.acls import models
from tests.unit.security.acls.models import NAMES, acl, deny


@given(models.acls)
def test_the_empty_filter_matches_everything(found: Acl) -> None:
    assert EVERYTHING.matches(found)
    assert AclFilter(*found).matches(found)


@given(models.acls, models.acls)
def test_a_filter_without_gaps_matches_one_permission_alone(wanted: Acl, other: Acl) -> None:
    assert AclFilter(*wanted).matches(other) == (wanted == other)


@given(models.acls, st.sampled_from(NAMES))
def test_match_finds_all_that_counts_for_a_name(found: Acl, name: str) -> None:
    wanted = AclFilter(ResourceType.TOPIC, name, PatternType.MATCH)
    assert wanted.matches(found) == models.covers(found, ResourceType.TOPIC, name)


def test_any_takes_the_name_literally_in_both_patterns() -> None:
    wanted = AclFilter(ResourceType.TOPIC, "ab", PatternType.ANY)
    assert wanted.matches(acl("ab"))
    assert wanted.matches(acl("ab..."))
    assert not wanted.matches(acl("a..."))
    assert not wanted.matches(acl("*"))


def test_the_pattern_of_a_filter_is_kept_without_a_name() -> None:
    assert AclFilter(pattern=PatternType.PREFIXED).matches(acl("a..."))
    assert not AclFilter(pattern=PatternType.PREFIXED).matches(acl("a"))
    assert AclFilter(pattern=PatternType.MATCH).matches(acl("a"))
    assert not AclFilter(permission=Permission.ALLOW).matches(deny("a"))


@pytest.mark.parametrize(
    "wrong,words",
    [
        (AclFilter(resource_type=ResourceType.UNKNOWN), "Unknown patternFilter."),
        (AclFilter(pattern=PatternType.UNKNOWN), "Unknown patternFilter."),
        (AclFilter(operation=Operation.UNKNOWN), "Unknown entryFilter."),
        (AclFilter(permission=Permission.UNKNOWN), "Unknown entryFilter."),
    ],
)
def test_a_number_that_nobody_knows_is_refused(wrong: AclFilter, words: str) -> None:
    with pytest.raises(InvalidAclFilter, match=words):
        wrong.check()
    EVERYTHING.check()
