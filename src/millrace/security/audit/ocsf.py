"""Events as JSON objects of the Open Cybersecurity Schema Framework, for tools that read those of others too.

Three of its classes are used: Authentication (3002), Application Lifecycle (6002), API Activity (6003). What
has no field there is under `unmapped`.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from millrace.security.acls.binding import Operation
from millrace.security.audit.events import (
    Activity,
    Actor,
    AdminAction,
    Decision,
    Event,
    Happening,
    Lifecycle,
    Login,
    Result,
)

SCHEMA_VERSION: Final = "1.1.0"
AUTHENTICATION: Final = 3002
LIFECYCLE: Final = 6002
API_ACTIVITY: Final = 6003
_LOGON: Final = 1
_CREATE, _READ, _UPDATE, _DELETE, _OTHER = 1, 2, 3, 4, 99
_INFORMATIONAL, _LOW = 1, 2
_SUCCESS, _FAILURE = 1, 2
_OAUTH: Final = 6

_ACTIVITIES: Final = {
    Operation.READ: _READ,
    Operation.WRITE: _UPDATE,
    Operation.CREATE: _CREATE,
    Operation.DELETE: _DELETE,
    Operation.ALTER: _UPDATE,
    Operation.DESCRIBE: _READ,
    Operation.DESCRIBE_CONFIGS: _READ,
    Operation.ALTER_CONFIGS: _UPDATE,
    Operation.IDEMPOTENT_WRITE: _UPDATE,
    Operation.CREATE_TOKENS: _CREATE,
    Operation.DESCRIBE_TOKENS: _READ,
}


class Reporter(NamedTuple):
    """The broker that tells of an event."""

    version: str
    cluster_id: str
    node_id: int


def ocsf_of(event: Event, reporter: Reporter) -> dict[str, Any]:
    """One event as an object of its class."""
    found = _of_class(event.what, reporter)
    found["type_uid"] = found["class_uid"] * 100 + found["activity_id"]
    found["category_uid"] = found["class_uid"] // 1000
    found["time"] = event.last_ms
    found["count"] = event.count
    if event.count > 1:
        found["start_time"] = event.first_ms
        found["end_time"] = event.last_ms
    found["metadata"] = {
        "version": SCHEMA_VERSION,
        "uid": event.uid,
        "product": {"name": "Millrace", "vendor_name": "Millrace", "version": reporter.version},
        "tenant_uid": reporter.cluster_id,
    }
    found["device"] = {"name": f"broker-{reporter.node_id}", "uid": str(reporter.node_id), "type_id": 1}
    return found


def ocsf_json(event: Event, reporter: Reporter) -> bytes:
    """One event as a record's value."""
    # ASCII alone: a stranger's name may hold half of a pair of surrogates, which no UTF-8 can say.
    return json.dumps(ocsf_of(event, reporter), separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _of_class(what: Happening, reporter: Reporter) -> dict[str, Any]:
    match what:
        case Decision():
            return _decision(what)
        case Login():
            return _login(what)
        case AdminAction():
            return _admin_action(what)
        case Lifecycle():
            return _lifecycle(what, reporter)


def _decision(what: Decision) -> dict[str, Any]:
    return {
        "class_uid": API_ACTIVITY,
        "activity_id": _ACTIVITIES.get(what.operation, _OTHER),
        **_outcome(what.is_allowed, "" if what.is_allowed else "not authorised"),
        "actor": {
            "user": _user(what.actor),
            "authorizations": [
                {
                    "decision": "authorized" if what.is_allowed else "denied",
                    "policy": {"name": "acl", "desc": what.rule},
                }
            ],
        },
        "api": {"operation": what.request, "service": {"name": "kafka"}},
        "src_endpoint": _place(what.actor),
        "resources": [{"type": what.resource_type.title, "name": what.resource}],
        "unmapped": {"operation": what.operation.name},
    }


def _admin_action(what: AdminAction) -> dict[str, Any]:
    failed = sorted({result.error for result in what.results if result.error != "NONE"})
    return {
        "class_uid": API_ACTIVITY,
        "activity_id": _activity_of(what.request),
        **_outcome(not failed, ", ".join(failed)),
        "actor": {"user": _user(what.actor)},
        "api": {
            "operation": what.request,
            "service": {"name": "kafka"},
            "response": {"error": failed[0] if failed else "NONE"},
        },
        "src_endpoint": _place(what.actor),
        "resources": [_resource(result) for result in what.results],
        "unmapped": {"results_left_out": what.left_out},
    }


def _login(what: Login) -> dict[str, Any]:
    is_oauth = what.mechanism == "OAUTHBEARER"
    return {
        "class_uid": AUTHENTICATION,
        "activity_id": _LOGON,
        **_outcome(what.is_success, what.reason),
        "user": _user(what.actor),
        "actor": {"user": _user(what.actor)},
        "auth_protocol": what.mechanism,
        "auth_protocol_id": _OAUTH if is_oauth else _OTHER,
        "is_cleartext": not what.is_encrypted,
        "is_remote": True,
        "service": {"name": "kafka"},
        "src_endpoint": _place(what.actor),
        "dst_endpoint": {"svc_name": what.listener},
    }


def _lifecycle(what: Lifecycle, reporter: Reporter) -> dict[str, Any]:
    is_loss = what.activity is Activity.EVENTS_LOST
    return {
        "class_uid": LIFECYCLE,
        "activity_id": what.activity.value,
        **_outcome(not is_loss, what.text if is_loss else ""),
        "message": what.text,
        "app": {"name": "Millrace", "vendor_name": "Millrace", "version": reporter.version},
    }


def _outcome(is_success: bool, detail: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "status_id": _SUCCESS if is_success else _FAILURE,
        "status": "Success" if is_success else "Failure",
        "severity_id": _INFORMATIONAL if is_success else _LOW,
    }
    if detail:
        found["status_detail"] = detail
    return found


def _user(actor: Actor) -> dict[str, Any]:
    kind, _, name = actor.principal.partition(":")
    return {"name": name, "type": kind or "User", "type_id": 1 if kind in ("User", "") else _OTHER}


def _place(actor: Actor) -> dict[str, Any]:
    place = {"ip": actor.host}
    if actor.client_id:
        place["name"] = actor.client_id
    return place


def _resource(result: Result) -> dict[str, Any]:
    data = {"error": result.error}
    if result.detail:
        data["detail"] = result.detail
    return {"type": result.resource_type, "name": result.resource, "data": data}


def _activity_of(request: str) -> int:
    for beginning, activity in (("Create", _CREATE), ("Delete", _DELETE), ("Expire", _DELETE)):
        if request.startswith(beginning):
            return activity
    return _UPDATE
