"""Which kind a decision belongs to, and how much of a stranger's name is kept."""

from __future__ import annotations

import pytest

from millrace.security.acls.binding import Operation
from millrace.security.audit.events import NAME_CHARACTERS_MAX, Actor, Decision, Kind, kind_of, shown
from tests.unit.security.audit.samples import denied


@pytest.mark.parametrize(
    "operation, kind",
    [
        (Operation.READ, Kind.DATA),
        (Operation.WRITE, Kind.DATA),
        (Operation.DESCRIBE, Kind.DESCRIBE),
        (Operation.CLUSTER_ACTION, Kind.DESCRIBE),
        (Operation.CREATE, Kind.ADMIN),
        (Operation.ALTER_CONFIGS, Kind.ADMIN),
    ],
)
def test_what_is_allowed_belongs_to_its_operation_and_what_is_denied_is_denied(
    operation: Operation, kind: Kind
) -> None:
    assert kind_of(operation, is_allowed=True) is kind
    assert kind_of(operation, is_allowed=False) is Kind.DENIED


def test_a_name_cannot_fill_the_log() -> None:
    assert shown("alice") == "alice"
    assert len(shown("a" * 100_000)) < NAME_CHARACTERS_MAX + 10


def test_what_is_the_same_is_seen_whatever_the_client_calls_itself() -> None:
    one = denied("orders")
    assert isinstance(one, Decision)
    other = one._replace(actor=Actor(one.actor.principal, one.actor.host, "another client"), rule="else")
    assert one.key == other.key
    assert one.key != one._replace(is_allowed=True).key
    assert one.key != one._replace(actor=Actor(one.actor.principal, "10.0.0.2")).key
