"""The tables of a classic group's members stay in step, whoever comes and goes."""

from __future__ import annotations

import pytest

from millrace.groups.classic.member import Member
from millrace.groups.classic.roster import Roster
from millrace.groups.commands import Protocol
from tests.unit.groups.worlds import subscription


def member(member_id: str, *offers: str, instance_id: str | None = None, timeout_ms: int = 1_000) -> Member:
    return Member(
        member_id=member_id,
        instance_id=instance_id,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=timeout_ms,
        protocols=tuple(Protocol(name, subscription(f"{name}-{member_id}")) for name in offers or ("range",)),
    )


def roster(*members: Member) -> Roster:
    made = Roster()
    for each in members:
        made.add(each)
    return made


def test_the_first_member_leads_and_hands_over_to_the_oldest() -> None:
    made = roster(member("a"), member("b"), member("c"))
    assert made.leader == "a"
    made.remove("b")
    assert made.leader == "a"
    made.remove("a")
    assert made.leader == "c"
    made.remove("c")
    assert made.leader is None


def test_an_id_that_was_only_given_out_is_forgotten_like_a_member() -> None:
    made = roster(member("a"))
    made.pending_joins["new"] = None
    assert made.remove("new") is None
    assert not made.pending_joins
    made.pending_joins["b"] = None
    made.add(member("b"))
    assert not made.pending_joins, "whoever has joined is expected no longer"


def test_a_static_member_that_comes_back_takes_the_place_of_the_old_one() -> None:
    old, new = member("a", instance_id="i"), member("x", instance_id="i")
    made = roster(old, member("b"))
    made.pending_syncs = {"a": None, "b": None}
    made.replace(old, new)
    assert list(made.members) == ["x", "b"]
    assert made.static_member("i") is new
    assert made.leader == "x"
    assert list(made.pending_syncs) == ["b", "x"]
    assert made.remove("a") is None
    assert made.static_members == {"i": "x"}, "the end of the old id does not end the new one"
    made.remove("x")
    assert made.static_member("i") is None


def test_nobody_has_no_name() -> None:
    assert roster(member("a")).static_member(None) is None


def test_a_roster_is_complete_when_all_who_are_expected_have_joined() -> None:
    made = roster(member("a"), member("b"))
    made.members["a"].join_token = 1
    assert (made.joined_count, made.is_complete) == (1, False)
    made.members["b"].join_token = 2
    assert made.is_complete
    made.pending_joins["c"] = None
    assert not made.is_complete


def test_a_leader_that_has_not_joined_is_replaced_by_the_first_who_has() -> None:
    made = roster(member("a"), member("b"), member("c"))
    assert not made.elect_leader()
    made.members["c"].join_token = 1
    made.members["b"].join_token = 2
    assert made.elect_leader()
    assert made.leader == "b"
    made.members["a"].join_token = 3
    assert made.elect_leader()
    assert made.leader == "b", "a leader that is here stays"


@pytest.mark.parametrize(
    "offers, common, preferred",
    [
        ([["range", "sticky"], ["sticky", "range"], ["sticky"]], ["sticky"], "sticky"),
        ([["range", "sticky"], ["sticky", "range"]], ["range", "sticky"], "range"),
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], ["range", "sticky"], "sticky"),
        ([["range"], ["sticky"]], [], None),
        ([], [], None),
    ],
)
def test_members_agree_on_what_all_offer_and_most_prefer(
    offers: list[list[str]], common: list[str], preferred: str | None
) -> None:
    made = roster(*(member(str(number), *names) for number, names in enumerate(offers)))
    assert list(made.common_protocols()) == common
    assert made.preferred_protocol() == preferred


def test_topics_are_those_of_all_members_unless_one_cannot_be_read() -> None:
    assert roster().topics("range") == frozenset()
    made = roster(member("a"), member("b"))
    assert made.topics("range") == frozenset({"range-a", "range-b"})
    assert made.topics(None) is None
    made.members["b"].protocols = (Protocol("range", b""),)
    assert made.topics("range") is None


def test_the_slowest_member_sets_the_time_for_a_rebalance() -> None:
    assert roster().rebalance_timeout_ms == 0
    assert roster(member("a", timeout_ms=5), member("b", timeout_ms=7)).rebalance_timeout_ms == 7
