"""Every metadata store there is. etcd is the real program, shared by all tests of a module, each with a
prefix of its own: revisions begin anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from millrace.metadata.store import Store
from millrace.metadata.store.embedded import EmbeddedStore
from millrace.metadata.store.etcd import EtcdStore
from millrace.metadata.store.etcd_calls import EtcdSettings
from millrace.sim.store import MemoryStore
from tests.harness.etcd import EtcdProcess

SHORT_TTL_MS: Final = 400
ETCD_TTL_MS: Final = 2_000
"""etcd grants no lease for less, and counts in seconds."""

_prefixes = itertools.count(1)


class MakeStore(NamedTuple):
    new: Callable[[], Store]
    ttl_ms: int
    is_lost_at_close: bool = False
    """Whether nothing is left for another store of the same kind."""

    def __call__(self) -> Store:
        return self.new()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    server = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.end()


@pytest.fixture(params=["embedded", "memory", "etcd"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "memory":
        return MakeStore(MemoryStore, SHORT_TTL_MS, is_lost_at_close=True)
    if request.param == "embedded":
        return MakeStore(lambda: EmbeddedStore(str(tmp_path / "metadata.sqlite")), SHORT_TTL_MS)
    server: EtcdProcess = request.getfixturevalue("etcd")
    settings = EtcdSettings(
        endpoints=(server.endpoint,), prefix=f"test-{next(_prefixes)}", request_timeout_ms=30_000
    )
    return MakeStore(lambda: EtcdStore(settings), ETCD_TTL_MS)
