"""Which limit counts for somebody, in Kafka's eight steps, and with whom they share it.

The table of all limits never changes: a changed one is a new object that shares most of the old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace.core.override import override
from millrace.core.persistent_map import PersistentMap
from millrace.security.quotas.entities import QuotaEntity, entity
from millrace.security.quotas.keys import CONNECTION_CREATION_RATE

Limits = Mapping[str, float]


class Bucket(NamedTuple):
    """Who shares one measured rate: everybody of a user, of a client id, or of both; or one tenant."""

    user: str = ""
    client_id: str = ""
    tenant: str = ""


class Limit(NamedTuple):
    """A limit that counts for somebody."""

    bound: float
    bucket: Bucket
    entity: QuotaEntity
    """The entity that the limit was set for."""


class QuotaTable:
    """All limits at one moment, by entity. It never changes."""

    __slots__ = ("_by_entity",)

    def __init__(self, limits: Iterable[tuple[QuotaEntity, Limits]] = ()) -> None:
        self._by_entity: PersistentMap[str, tuple[QuotaEntity, Limits]] = PersistentMap()
        self._by_entity = self.updated(dict(limits))._by_entity

    def __len__(self) -> int:
        return len(self._by_entity)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Limits]]:
        return iter(self._by_entity.values())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuotaTable) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # compared by what it holds, and never a key

    def of(self, whom: QuotaEntity) -> Limits:
        """The limits of exactly this entity."""
        found = self._by_entity.get(_key(whom))
        return _NO_LIMITS if found is None else found[1]

    def updated(self, changes: Mapping[QuotaEntity, Limits]) -> QuotaTable:
        """The table in which these entities have exactly these limits."""
        puts = {
            _key(whom): (whom, MappingProxyType(dict(limits))) for whom, limits in changes.items() if limits
        }
        made = QuotaTable.__new__(QuotaTable)
        made._by_entity = self._by_entity.updated(puts, [_key(whom) for whom in changes])
        return made

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """The limit of this key that counts for a client, or None if there is none."""
        if not len(self._by_entity):
            return None
        for whom, bucket in _steps(user, client_id):
            bound = self.of(whom).get(key)
            if bound is not None:
                return Limit(bound, bucket, whom)
        return None

    def tenant_limit(self, key: str, tenant: str) -> Limit | None:
        """The limit of a tenant, which counts beside that of the client."""
        whom = entity(tenant=tenant)
        bound = self.of(whom).get(key)
        return None if bound is None else Limit(bound, Bucket(tenant=tenant), whom)

    def connection_rate(self, ip: str) -> float | None:
        """How many connections a second may come from an address; None if any number."""
        if not len(self._by_entity):
            return None
        own = self.of(entity(ip=ip)).get(CONNECTION_CREATION_RATE)
        return self.of(_DEFAULT_IP).get(CONNECTION_CREATION_RATE) if own is None else own


def share(bound: float, brokers: int) -> float:
    """The part of a limit for the whole cluster that one of so many brokers enforces."""
    return bound / max(1, brokers)


def _steps(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, Bucket]]:
    """The entities that may have the limit, the most special first. A client without an id is in no step that
    has one."""
    by_user = Bucket(user=user)
    if client_id:
        pair = Bucket(user, client_id)
        yield entity(user=user, client_id=client_id), pair
        yield entity(user=user, client_id=None), pair
        yield entity(user=user), by_user
        yield entity(user=None, client_id=client_id), pair
        yield entity(user=None, client_id=None), pair
        yield entity(user=None), by_user
        yield entity(client_id=client_id), Bucket(client_id=client_id)
        yield entity(client_id=None), Bucket(client_id=client_id)
    else:
        yield entity(user=user), by_user
        yield entity(user=None), by_user


def _key(whom: QuotaEntity) -> str:
    """Unambiguous, whatever is in the names: each is led by its length."""
    return " ".join(f"{kind} {'-' if name is None else f'{len(name)} {name}'}" for kind, name in whom.parts)


_NO_LIMITS: Final[Limits] = MappingProxyType({})
_DEFAULT_IP: Final = entity(ip=None)
NO_QUOTAS: Final = QuotaTable()
