"""Lines are Kafka's where Kafka has one, and nobody can forge a second line by a name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.security.audit.events import Activity, Actor, AdminAction, Lifecycle, Login, Result
from millrace.security.audit.lines import line_of, message_of
from tests.unit.security.audit.samples import ALICE, denied, event


def test_a_decision_is_written_as_kafkas_authorizer_writes_it() -> None:
    assert line_of(event(denied("orders"), count=7, last_ms=1_793_000_000_042)) == (
        "[2026-10-26 07:33:20,042] INFO Principal = User:alice is Denied operation = WRITE "
        "from host = 10.0.0.1 on resource = Topic:LITERAL:orders for request = Produce "
        "with resourceRefCount = 7 based on rule DefaultDeny (kafka.authorizer.logger)"
    )


def test_the_others_are_built_alike() -> None:
    failed = Login(ALICE, "PLAIN", "EXTERNAL", False, True, "the password is wrong")
    assert message_of(failed, 3) == (
        "Principal = User:alice failed to log in by PLAIN from host = 10.0.0.1 on listener = EXTERNAL "
        "3 times because the password is wrong"
    )
    action = AdminAction(ALICE, "CreateTopics", (Result("Topic", "orders", "NONE"),), left_out=2)
    assert message_of(action) == (
        "Principal = User:alice sent request = CreateTopics from host = 10.0.0.1 "
        "with results = [Topic:orders=NONE] and 2 more"
    )
    assert line_of(event(Lifecycle(Activity.START, "broker 1 starts"))) == (
        "[1970-01-01 00:00:00,000] INFO broker 1 starts (millrace.audit)"
    )


@given(st.text(alphabet=st.characters(), max_size=30))
def test_no_name_makes_another_line(name: str) -> None:
    login = Login(Actor(f"User:{name}", "h"), name, "L", False, False, name)
    line = line_of(event(login))
    assert len(line.splitlines()) == 1
    assert line.encode()


def test_a_forged_line_end_is_visible() -> None:
    what = denied("a")._replace(actor=Actor("User:x\nPrincipal = User:admin", "h"))
    assert "User:x\\u000aPrincipal" in line_of(event(what))
