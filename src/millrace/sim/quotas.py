"""Limits that come and go while a cluster is used: clients are throttled for a while, and lose nothing."""

from __future__ import annotations

from typing import Final

from millrace.sim.clients.admin import first_answer
from millrace.sim.clients.client import Client
from millrace.sim.run import Run
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)

QUOTAS_VERSION: Final = 1
LIMITS: Final = (
    ("producer_byte_rate", (100.0, 1_000.0, 10_000.0)),
    ("consumer_byte_rate", (100.0, 1_000.0, 10_000.0)),
    ("request_percentage", (0.5, 50.0)),
    ("controller_mutation_rate", (1.0, 10.0)),
)
"""Some that hold up nearly everybody, and some that nobody feels."""


async def limit_everybody(run: Run) -> None:
    """Every client id gets a limit, and loses it again."""
    key, bounds = run.chance.choice(LIMITS)
    if key in run.in_use:
        return
    run.in_use[key] = None
    bound = run.chance.choice(bounds)
    run.cluster.note(f"every client has {key}={bound:g}")
    await run.by_admin(_set_default(run.admin, key, bound))
    await run.sleep(1.0, 8.0)
    await run.by_admin(_set_default(run.admin, key, None))
    run.cluster.note(f"no client has {key}")
    del run.in_use[key]


async def _set_default(client: Client, key: str, bound: float | None) -> None:
    everybody = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)
    change = OpData(key=key, value=bound or 0.0, remove=bound is None)
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasRequestEntryData(entity=[everybody], ops=[change])]
    )
    while True:
        answer: AlterClientQuotasResponse = await first_answer(
            client, ApiKey.ALTER_CLIENT_QUOTAS, QUOTAS_VERSION, request
        )
        if not any(entry.error_code for entry in answer.entries):
            return
        await client.pause()
