"""The store of a cluster: etcd, whose revisions, transactions, leases and watches it passes on as they are.

One etcd may serve several clusters under different prefixes, so revisions have gaps here. Nothing is kept in
this process: whatever etcd did not confirm may or may not have happened.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any, Final

from aetcd import rpc

from millrace.metadata.errors import (
    Conflict,
    LeaseExpired,
    StoreRefused,
    StoreUnavailable,
    StoreWentBack,
    WatchLost,
)
from millrace.metadata.store import ChangeBatch, Compare, KeyChange, LeaseId, Put, Snapshot, Versioned
from millrace.metadata.store.etcd_calls import EtcdCalls, EtcdSettings

log = logging.getLogger(__name__)

OPERATIONS_MAX: Final = 128
"""etcd's default for --max-txn-ops."""
KEYS_PER_PAGE: Final = 2_000
LOAD_ATTEMPTS_MAX: Final = 5
UNFIT_VERSIONS: Final = ("3.5.0", "3.5.1", "3.5.2")
"""In these versions, a member that is killed may come back with data that differs from the others'."""


class EtcdStore:
    """The store that the brokers of a cluster share."""

    operations_max = OPERATIONS_MAX

    def __init__(self, settings: EtcdSettings) -> None:
        self._calls = EtcdCalls(settings)
        self._prefix = settings.prefix.strip("/").encode() + b"/"
        self._seen_revision = 0
        """The highest revision of a change under our prefix that went through this store."""

    async def open(self) -> None:
        answer = await self._range(limit=1)
        self._seen(answer.header.revision)
        await self._check_version()

    async def close(self) -> None:
        await self._calls.close()

    async def load(self) -> Snapshot:
        for _ in range(LOAD_ATTEMPTS_MAX):
            try:
                snapshot = await self._load()
            except StoreRefused as failure:
                if failure.status != "OUT_OF_RANGE":
                    raise
                # The revision that the first page had was compacted away: begin again with a later one.
                continue
            self._seen(snapshot.revision)
            return snapshot
        raise StoreUnavailable("etcd compacts faster than a snapshot can be read")

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        keys = [put.key for put in puts] + list(deletes)
        assert len(set(keys)) == len(keys), "a key is written twice in one commit"
        operations = max(len(compares), len(keys))
        assert operations <= OPERATIONS_MAX, (operations, OPERATIONS_MAX)
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[
                *(rpc.RequestOp(request_put=self._put(put)) for put in puts),
                *(
                    rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(key)))
                    for key in deletes
                ),
            ],
        )
        answer = await self._transact(request, puts)
        if not answer.succeeded:
            raise Conflict([compare.key for compare in compares])
        is_changed = bool(puts) or any(
            response.response_delete_range.deleted for response in answer.responses
        )
        if is_changed:
            self._seen(answer.header.revision)
            return int(answer.header.revision)
        # etcd's own revision may be one of another prefix, which no watch of ours ever reaches.
        return self._seen_revision

    async def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        present = (await self._range(limit=1)).header.revision
        if present < after_revision:
            raise StoreWentBack(seen=after_revision, found=present)
        stream = await self._calls.open_stream(lambda channel: rpc.WatchStub(channel).Watch)
        try:
            create = rpc.WatchCreateRequest(
                key=self._prefix, range_end=_end_of(self._prefix), start_revision=after_revision + 1
            )
            await self._calls.write(stream, rpc.WatchRequest(create_request=create))
            while True:
                answer = await self._calls.read(stream)
                if answer.compact_revision:
                    raise WatchLost(after_revision, answer.compact_revision)
                if answer.canceled:
                    raise StoreUnavailable(f"etcd ended the watch: {answer.cancel_reason}")
                for batch in self._batches(answer.events):
                    self._seen(batch.revision)
                    after_revision = batch.revision
                    yield batch
        finally:
            stream.cancel()

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        # etcd counts in whole seconds, so we ask for no less than was wanted; it grants two at the least.
        request = rpc.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        answer = await self._calls.ask(lambda channel: rpc.LeaseStub(channel).LeaseGrant, request)
        return LeaseId(answer.ID)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        answer = await self._calls.exchange(
            lambda channel: rpc.LeaseStub(channel).LeaseKeepAlive, rpc.LeaseKeepAliveRequest(ID=lease_id)
        )
        if answer.TTL <= 0:
            raise LeaseExpired(lease_id)
        return int(answer.TTL) * 1000

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._calls.ask(lambda channel: rpc.LeaseStub(channel).LeaseRevoke, request)
        except StoreRefused as failure:
            if failure.status != "NOT_FOUND":
                raise

    # Reading.

    async def _range(self, **fields: Any) -> Any:
        fields.setdefault("key", self._prefix)
        request = rpc.RangeRequest(range_end=_end_of(self._prefix), **fields)
        return await self._calls.ask(lambda channel: rpc.KVStub(channel).Range, request)

    async def _load(self) -> Snapshot:
        entries: dict[str, Versioned] = {}
        start, revision = self._prefix, 0
        while True:
            page = await self._range(key=start, limit=KEYS_PER_PAGE, revision=revision)
            # All pages have the first one's revision: together they show one moment.
            revision = revision or page.header.revision
            for entry in page.kvs:
                entries[self._name(entry.key)] = Versioned(entry.value, entry.mod_revision)
            if not page.more:
                return Snapshot(revision, entries)
            start = page.kvs[-1].key + b"\0"

    def _batches(self, events: Sequence[Any]) -> list[ChangeBatch]:
        """The changes by revision. etcd never splits a revision over two answers unless it is asked to."""
        batches = []
        for revision, group in groupby(events, key=lambda event: int(event.kv.mod_revision)):
            changes = tuple(
                KeyChange(
                    self._name(event.kv.key),
                    None if event.type == rpc.Event.DELETE else event.kv.value,
                    revision,
                )
                for event in group
            )
            batches.append(ChangeBatch(revision, changes))
        return batches

    async def _check_version(self) -> None:
        try:
            status = await self._calls.ask(
                lambda channel: rpc.MaintenanceStub(channel).Status, rpc.StatusRequest()
            )
        except StoreUnavailable:
            # Not every user may ask for the version, which is needed for a warning only.
            return
        if status.version in UNFIT_VERSIONS:
            log.warning(
                "etcd %s may lose consistency when it is killed: use 3.5.3 or later in production",
                status.version,
            )

    # Writing.

    async def _transact(self, request: Any, puts: Sequence[Put]) -> Any:
        try:
            return await self._calls.ask(
                lambda channel: rpc.KVStub(channel).Txn, request, is_repeatable=False
            )
        except StoreRefused as failure:
            if failure.status == "NOT_FOUND" and "lease" in str(failure):
                leases = [put.lease_id for put in puts if put.lease_id is not None]
                raise LeaseExpired(leases[0] if leases else 0) from failure
            raise

    def _compare(self, compare: Compare) -> Any:
        return rpc.Compare(
            result=rpc.Compare.EQUAL,
            target=rpc.Compare.MOD,
            key=self._key(compare.key),
            mod_revision=compare.mod_revision,
        )

    def _put(self, put: Put) -> Any:
        return rpc.PutRequest(key=self._key(put.key), value=put.value, lease=put.lease_id or 0)

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def _name(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode()

    def _seen(self, revision: int) -> None:
        self._seen_revision = max(self._seen_revision, revision)


def _end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
