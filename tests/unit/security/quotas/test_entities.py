"""Whom a quota can be for, with Kafka's words for whom it cannot."""

from __future__ import annotations

import pytest

from millrace.security.quotas.entities import InvalidQuota, QuotaEntity, checked_entity, entity

Parts = list[tuple[str, str | None]]


def test_parts_come_in_one_order_whatever_the_request_had() -> None:
    found = checked_entity([("client-id", None), ("user", "me")])
    assert found == entity(user="me", client_id=None)
    assert found == QuotaEntity((("user", "me"), ("client-id", None)))
    assert found.has("client-id")
    assert not found.has("ip")
    assert (found.name_of("user"), found.name_of("client-id"), found.name_of("ip")) == ("me", None, None)


def test_an_address_is_written_in_one_way() -> None:
    assert checked_entity([("ip", "0:0:0:0:0:0:0:1")]) == entity(ip="::1")
    assert checked_entity([("ip", None)]) == entity(ip=None)


@pytest.mark.parametrize(
    "parts,words",
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("team", "a")], "Unhandled client quota entity type: team"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "::1"), ("user", "a")], "should not be combined"),
        ([("ip", "no such host")], "not a valid IP or resolvable host"),
        ([("tenant", "a")], "millrace tenant"),
    ],
)
def test_what_cannot_have_a_quota_is_refused(parts: Parts, words: str) -> None:
    with pytest.raises(InvalidQuota, match=words):
        checked_entity(parts)
