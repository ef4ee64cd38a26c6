"""Events in the form of OCSF: the three classes with the fields that the schema asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace.security.audit.events import Activity, Actor, AdminAction, Happening, Lifecycle, Login, Result
from millrace.security.audit.ocsf import Reporter, ocsf_json, ocsf_of
from tests.unit.security.audit.samples import ALICE, denied, event

REPORTER = Reporter("1.2.3", "a-cluster", 4)


def told(what: Happening, count: int = 1) -> dict[str, Any]:
    return ocsf_of(event(what, count=count, first_ms=1_000, last_ms=5_000), REPORTER)


HAPPENINGS: list[tuple[Happening, int, int]] = [
    (denied("orders"), 6003, 3),
    (Login(ALICE, "SCRAM-SHA-256", "EXTERNAL", True, True), 3002, 1),
    (AdminAction(ALICE, "DeleteTopics", (Result("Topic", "a", "NONE"),)), 6003, 4),
    (Lifecycle(Activity.STOP, "broker 4 stops"), 6002, 4),
]


@pytest.mark.parametrize("what, class_uid, activity_id", HAPPENINGS)
def test_every_event_has_what_the_schema_requires(what: Happening, class_uid: int, activity_id: int) -> None:
    found = told(what)
    assert found["class_uid"] == class_uid
    assert found["activity_id"] == activity_id
    assert found["type_uid"] == class_uid * 100 + activity_id
    assert found["category_uid"] == class_uid // 1000
    assert found["time"] == 5_000
    assert found["severity_id"] in (1, 2)
    assert found["metadata"]["version"] == "1.1.0"
    assert found["metadata"]["uid"] == "run-1"
    assert found["metadata"]["product"] == {
        "name": "Millrace",
        "vendor_name": "Millrace",
        "version": "1.2.3",
    }
    assert found["device"]["uid"] == "4"
    assert json.loads(ocsf_json(event(what, first_ms=1_000, last_ms=5_000), REPORTER)) == found


def test_a_denied_write_names_who_what_whence_and_why() -> None:
    found = told(denied("orders"), count=9)
    assert found["actor"]["user"] == {"name": "alice", "type": "User", "type_id": 1}
    assert found["actor"]["authorizations"] == [
        {"decision": "denied", "policy": {"name": "acl", "desc": "DefaultDeny"}}
    ]
    assert found["api"]["operation"] == "Produce"
    assert found["src_endpoint"] == {"ip": "10.0.0.1"}
    assert found["resources"] == [{"type": "Topic", "name": "orders"}]
    assert (found["status_id"], found["status"]) == (2, "Failure")
    assert (found["count"], found["start_time"], found["end_time"]) == (9, 1_000, 5_000)


def test_an_action_tells_the_result_for_each_thing() -> None:
    results = (Result("Topic", "a", "NONE"), Result("Topic", "b", "TOPIC_ALREADY_EXISTS"))
    found = told(AdminAction(Actor("User:alice", "h", "admin-1"), "CreateTopics", results))
    assert found["status_id"] == 2
    assert found["status_detail"] == "TOPIC_ALREADY_EXISTS"
    assert [resource["data"]["error"] for resource in found["resources"]] == ["NONE", "TOPIC_ALREADY_EXISTS"]
    assert found["src_endpoint"] == {"ip": "h", "name": "admin-1"}


def test_a_failed_login_tells_who_was_claimed_and_whether_it_was_readable() -> None:
    found = told(Login(ALICE, "PLAIN", "EXTERNAL", False, False, "the password is wrong"))
    assert found["user"]["name"] == "alice"
    assert found["auth_protocol"] == "PLAIN"
    assert found["is_cleartext"]
    assert found["dst_endpoint"] == {"svc_name": "EXTERNAL"}
    assert found["status_detail"] == "the password is wrong"
    assert told(Login(ALICE, "OAUTHBEARER", "E", True, True))["auth_protocol_id"] == 6


def test_any_name_can_be_written() -> None:
    what = denied("\ud800")._replace(actor=Actor("User:\udfff\n", "h"))
    assert json.loads(ocsf_json(event(what), REPORTER))["resources"][0]["name"] == "\ud800"
