"""How many bytes each tenant stores, and which tenants store as many as they may.

Counted are the logs of partitions as their leaders have them, each once, whatever the number of replicas. A
broker looks at its own logs, and asks the other brokers for theirs; of one that does not answer it believes
what it said last. It does so every few seconds, only where a tenant has such a limit: in between a tenant may
write more than it may store, and not be refused before the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.security.tenants import NO_TENANTS, Tenant, TenantHeld, TenantOverLimit, TenantTable

if TYPE_CHECKING:
    from millrace.metadata.image import Image
    from millrace.replica.partitions import Partitions

log: Final = logging.getLogger(__name__)

Sizes = Mapping[TopicPartition, int]
AskForSizes = Callable[[NodeId, Sequence[TopicPartition]], Awaitable[Sizes]]
"""The sizes of these partitions' logs on another broker; raises MillraceError if it does not answer."""


class TenantStorage:
    """What tenants store, as of the last look."""

    def __init__(
        self,
        image: Callable[[], Image],
        partitions: Partitions,
        *,
        node_id: NodeId,
        interval_s: Callable[[], float],
        ask: AskForSizes | None = None,
    ) -> None:
        """`ask`: where there are other brokers."""
        self._image = image
        self._partitions = partitions
        self._node_id = node_id
        self._interval_s = interval_s
        self._ask = ask
        self._said: dict[NodeId, Sizes] = {}
        """What other brokers said last."""
        self._tenants: TenantTable = NO_TENANTS
        self._full: dict[str, Tenant] = {}
        self.stored: dict[str, int] = {}
        """Bytes of each tenant that has a limit, by name."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s())

    def refusal(self, topic: str) -> MillraceError | None:
        """Why nothing may be written to a topic at present: TenantHeld, TenantOverLimit; None if it may."""
        if not self._full:
            return None
        owner = self._tenants.owner_of(topic)
        tenant = None if owner is None else self._full.get(owner.name)
        return None if tenant is None else _refusal(tenant, self.stored[tenant.name])

    async def look(self) -> None:
        """Find out what is stored now."""
        image = self._image()
        self._tenants = image.security.tenants
        limited = {
            name: tenant
            for name, tenant in self._tenants.tenants.items()
            if tenant.limits.stored_bytes is not None
        }
        stored = dict.fromkeys(limited, 0)
        elsewhere: dict[NodeId, dict[TopicPartition, str]] = {}
        if limited:
            for name, topic in image.topics.items():
                tenant = self._tenants.owner_of(name)
                if tenant is None or tenant.name not in limited:
                    continue
                for index, state in enumerate(topic.partitions):
                    if state.leader == self._node_id:
                        found = self._partitions.find(name, index)
                        stored[tenant.name] += 0 if found is None else found.log.size_bytes
                    else:
                        elsewhere.setdefault(state.leader, {})[TopicPartition(name, index)] = tenant.name
        for node_id, owners in elsewhere.items():
            sizes = await self._sizes_at(node_id, list(owners))
            for partition, owner in owners.items():
                stored[owner] += sizes.get(partition, 0)
        self._said = {node_id: said for node_id, said in self._said.items() if node_id in elsewhere}
        self.stored = stored
        full = {
            name: tenant for name, tenant in limited.items() if _refusal(tenant, stored[name]) is not None
        }
        if full.keys() != self._full.keys():
            log.info("tenants that may store no more", extra={"tenants": ", ".join(sorted(full))})
            # Requests that were recognised when there was room, or when there was none, are looked at anew.
            self._partitions.world.changed()
        self._full = full

    async def _sizes_at(self, node_id: NodeId, partitions: Sequence[TopicPartition]) -> Sizes:
        if self._ask is not None and node_id in self._image().brokers:
            try:
                self._said[node_id] = await self._ask(node_id, partitions)
            except MillraceError as error:
                log.debug(
                    "a broker does not say what it stores", extra={"node_id": node_id, "why": str(error)}
                )
        return self._said.get(node_id, {})


def _refusal(tenant: Tenant, stored_bytes: int) -> MillraceError | None:
    try:
        tenant.check_storage(stored_bytes)
    except (TenantHeld, TenantOverLimit) as error:
        return error
    return None
