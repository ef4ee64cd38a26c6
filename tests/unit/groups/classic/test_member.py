"""One member of a classic group: what it tells, and what is stored of it."""

from __future__ import annotations

from millrace.coordinator.decision import Decision
from millrace.groups.classic.member import Member
from millrace.groups.commands import Join, Protocol
from millrace.wire.messages.group_records import MemberMetadata

JOIN = Join(
    group_id="g",
    member_id="",
    instance_id="i",
    client_id="c",
    client_host="/h",
    session_timeout_ms=10,
    rebalance_timeout_ms=20,
    protocol_type="consumer",
    protocols=(Protocol("range", b"r"), Protocol("sticky", b"s")),
    new_member_id="m",
)


def test_the_record_of_a_member_gives_it_back_with_the_protocol_that_was_chosen() -> None:
    member = Member.joining("m", JOIN, 5)
    member.assignment = b"assigned"
    again = Member.restored(member.stored("sticky"), "sticky")
    assert again.protocols == (Protocol("sticky", b"s"),), "the record has room for one"
    assert (again.member_id, again.instance_id, again.client_id, again.client_host) == ("m", "i", "c", "/h")
    assert (again.session_timeout_ms, again.rebalance_timeout_ms, again.assignment) == (10, 20, b"assigned")
    assert again.stored("sticky") == member.stored("sticky")


def test_a_record_without_a_rebalance_timeout_has_that_of_the_session() -> None:
    value = MemberMetadata(member_id="m", session_timeout=10, rebalance_timeout=-1)
    assert Member.restored(value, None).rebalance_timeout_ms == 10


def test_a_protocol_that_it_does_not_offer_has_no_metadata() -> None:
    member = Member.joining("m", JOIN, 5)
    assert (member.metadata_for("sticky"), member.metadata_for("other"), member.metadata_for(None)) == (
        b"s",
        b"",
        b"",
    )


def test_who_joins_again_is_known_by_what_it_tells_now() -> None:
    member = Member.joining("m", JOIN, 5)
    member.alive = Decision()
    again = Join(
        group_id="g",
        member_id="m",
        client_id="d",
        client_host="/i",
        session_timeout_ms=11,
        rebalance_timeout_ms=21,
        protocol_type="consumer",
        protocols=(Protocol("range", b"new"),),
        new_member_id="",
    )
    member.update(again)
    assert (member.client_id, member.client_host) == ("d", "/i")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (11, 21)
    assert member.metadata_for("range") == b"new"
    assert member.member_id == "m"
    assert member.alive is None, "the ready answer had the old session's time-out"


def test_it_waits_while_a_request_of_it_is_open() -> None:
    member = Member.joining("m", JOIN, 5)
    assert not member.is_waiting
    member.sync_token = 1
    assert member.is_waiting
