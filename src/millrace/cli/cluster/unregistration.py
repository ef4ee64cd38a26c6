"""A broker leaves the cluster for good: what stands against it, and the request."""

from __future__ import annotations

from typing import Final

from millrace.cli.broker_requests import Connection
from millrace.cli.clients import RequestFailed
from millrace.cli.reassign.reassignments import Layout
from millrace.core.ids import NodeId
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.unregister_broker import UnregisterBrokerRequest

UNREGISTER_VERSION: Final = 0


def refusal(layout: Layout, node_id: NodeId) -> str | None:
    """Why the broker has to stay, and what to do about it; None if it may go.

    The cluster itself looks only at whether the broker runs."""
    held = [nodes for nodes in layout.replicas.values() if node_id in nodes]
    if not held and node_id not in layout.racks:
        return None
    steps = []
    if held:
        steps.append(
            f"drain it (`millrace reassign generate --drain {node_id} --output plan.json`, then "
            f"`millrace reassign execute plan.json --wait`)"
        )
    if node_id in layout.racks:
        host, port = layout.addresses[node_id]
        steps.append("stop it")
        reason = f"runs at {host}:{port}"
        if held:
            reason += f" and holds {_replicas(len(held))}"
    else:
        reason = f"still holds {_replicas(len(held))}"
        alone = sum(len(nodes) == 1 for nodes in held)
        if alone:
            steps.insert(0, f"start it again, because {_replicas(alone)} of it cannot be had from elsewhere")
            steps.append("stop it")
    return f"broker {node_id} {reason}: {', '.join(steps)}, and try again"


def unregister(connection: Connection, node_id: NodeId) -> None:
    answer = connection.ask(
        ApiKey.UNREGISTER_BROKER, UNREGISTER_VERSION, UnregisterBrokerRequest(broker_id=node_id)
    )
    if answer.error_code:
        error = ErrorCode(answer.error_code)
        raise RequestFailed(f"broker {node_id}: {answer.error_message or error.message} ({error.name})")


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
