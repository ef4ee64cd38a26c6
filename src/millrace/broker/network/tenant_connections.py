"""Which tenant each connection belongs to, and how many each tenant has.

A connection counts from its first request after it has shown who it is, and ends there if its tenant may have
no more. One that was counted stays, also when the limit is lowered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.security.tenants import NO_TENANTS, TenantOverLimit, TenantTable

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection


class TenantConnections:
    """The connections of one broker, by tenant."""

    def __init__(self) -> None:
        self.table: TenantTable = NO_TENANTS
        self.counts: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        """How many were ended because their tenant had enough."""
        self._tenants: dict[Connection, str] = {}

    def enter(self, connection: Connection, principals: Iterable[str]) -> str | None:
        """Whose connection it is now, by those who it counts as; None if it is no tenant's. Raises
        TenantOverLimit if there are too many."""
        tenant = self.table.tenant_of(principals)
        name = None if tenant is None else tenant.name
        if self._tenants.get(connection) == name:
            return name
        self.leave(connection)
        if tenant is None:
            return None
        present = self.counts.get(tenant.name, 0)
        try:
            tenant.check_connections(present)
        except TenantOverLimit:
            self.refused[tenant.name] = self.refused.get(tenant.name, 0) + 1
            raise
        self._tenants[connection] = tenant.name
        self.counts[tenant.name] = present + 1
        return tenant.name

    def leave(self, connection: Connection) -> None:
        """The connection has ended, or is somebody else's."""
        name = self._tenants.pop(connection, None)
        if name is not None:
            left = self.counts[name] - 1
            if left:
                self.counts[name] = left
            else:
                del self.counts[name]
