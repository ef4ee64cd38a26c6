"""Lag in seconds and the members' health, from the broker's HTTP port; blank where nobody can tell."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from typing import Any, Final

import orjson
from confluent_kafka.admin import AdminClient

from millrace.cli import clients, settings
from millrace.cli.group.state import GroupState
from millrace.cli.options import BrokerAddress

TIMEOUT_S: Final = 5.0
LISTENER_SETTING: Final = "metrics.listener"
TLS_SETTING: Final = "metrics.ssl.keystore.location"
TOKEN_VARIABLE: Final = "MILLRACE_METRICS_TOKEN"
"""In the environment, not among the arguments, which everybody on the machine can read."""
AUTHORITY_VARIABLE: Final = "MILLRACE_METRICS_CA"


def discovered_url(admin: AdminClient, broker: BrokerAddress, state: GroupState) -> str | None:
    """The HTTP port of the group's coordinator as its own settings name it; other brokers have none."""
    if state.coordinator_id is None:
        return None
    return url_of(admin, broker, state.coordinator_id, state.coordinator_host)


def url_of(admin: AdminClient, broker: BrokerAddress, node_id: int, client_host: str | None) -> str | None:
    """The HTTP port of a broker as its own settings name it; None if it has none or does not tell."""
    try:
        entries = settings.describe(admin, broker, settings.broker_resource(node_id))
    except clients.RequestFailed:
        return None
    values = {entry.name: entry.value for entry in entries}
    listener = values.get(LISTENER_SETTING)
    if not listener:
        return None
    # A listener without a host means all interfaces too.
    host, port = clients.split_host_port(f"0.0.0.0{listener}" if listener.startswith(":") else listener)
    # A broker that listens everywhere is reached where its clients reach it.
    own_host = client_host if host in ("0.0.0.0", "::") else host
    return f"http{'s' if values.get(TLS_SETTING) else ''}://{own_host}:{port}" if port else None


def with_health(state: GroupState, url: str | None) -> GroupState:
    """The same group with what the HTTP port adds, if it answers."""
    document = fetched(url, "groups", state.group) if url else None
    if document is None:
        return state
    lags = {(each["topic"], each["partition"]): each.get("lag_ms") for each in document["partitions"]}
    health = {each["member_id"]: each for each in document["members"]}
    return replace(
        state,
        partitions=tuple(
            replace(each, lag_ms=lags.get((each.topic, each.partition))) for each in state.partitions
        ),
        members=tuple(
            replace(
                each,
                heartbeat_ms=health.get(each.member, {}).get("last_heartbeat_ms"),
                fetch_ms=health.get(each.member, {}).get("last_fetch_ms"),
                commit_ms=health.get(each.member, {}).get("last_commit_ms"),
            )
            for each in state.members
        ),
    )


def fetched(url: str, collection: str, name: str) -> dict[str, Any] | None:
    """What the HTTP port tells of one thing; None if it does not answer, or knows nothing of it."""
    address = f"{url.rstrip('/')}/v1/{collection}/{urllib.parse.quote(name, safe='')}"
    token = os.environ.get(TOKEN_VARIABLE)
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        trusted = None
        if address.startswith("https:"):
            trusted = ssl.create_default_context(cafile=os.environ.get(AUTHORITY_VARIABLE))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted) as response:
            document: dict[str, Any] = orjson.loads(response.read())
            return document
    except (urllib.error.URLError, OSError, orjson.JSONDecodeError):
        return None
