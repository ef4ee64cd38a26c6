"""A network between the processes of a cluster that tests can cut, one way or both, without the processes
being asked. Clients, which are the tests themselves, reach every broker at all times."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from tests.harness.etcd import EtcdProcess, lasting_port
from tests.harness.millrace import MillraceProcess
from tests.harness.namespaces import Namespaces, NotPermitted
from tests.harness.proxies import Proxies

ETCD: Final = "etcd"
CHOICE: Final = "MILLRACE_TEST_NETWORK"
"""The variable that asks for "namespaces" or "proxies"; without it the former where they are permitted."""


def node(node_id: int) -> str:
    return f"broker-{node_id}"


class Network(ABC):
    """Names are those of `node` and ETCD. A cut link is silent: nothing is refused, nothing arrives."""

    @abstractmethod
    def place_etcd(self, etcd: EtcdProcess) -> None:
        """Before it is started: where it listens."""

    @abstractmethod
    def place_broker(self, node_id: int, broker: MillraceProcess, etcd: EtcdProcess) -> None:
        """Before it is started: where it listens, where others find it, and where it finds etcd."""

    @abstractmethod
    def cut(self, source: str, target: str) -> None:
        """From now on nothing of `source` arrives at `target`; the other way is left as it is."""

    @abstractmethod
    def heal(self) -> None:
        """All links are whole again."""

    @abstractmethod
    def close(self) -> None: ...

    def cut_both(self, one: str, others: Sequence[str]) -> None:
        for other in others:
            self.cut(one, other)
            self.cut(other, one)


class NamespaceNetwork(Network):
    """Every process in a network namespace of its own: cut links lose packets, as real ones do."""

    def __init__(self, brokers: int) -> None:
        self._namespaces = Namespaces([node(number) for number in range(1, brokers + 1)] + [ETCD])

    @override
    def place_etcd(self, etcd: EtcdProcess) -> None:
        etcd.host = self._namespaces.address(ETCD)
        etcd.prefix = self._namespaces.prefix(ETCD)

    @override
    def place_broker(self, node_id: int, broker: MillraceProcess, etcd: EtcdProcess) -> None:
        broker.host = self._namespaces.address(node(node_id))
        broker.prefix = self._namespaces.prefix(node(node_id))
        broker.settings["etcd.endpoints"] = etcd.endpoint

    @override
    def cut(self, source: str, target: str) -> None:
        self._namespaces.cut(source, target)

    @override
    def heal(self) -> None:
        self._namespaces.heal()

    @override
    def close(self) -> None:
        self._namespaces.close()


class ProxyNetwork(Network):
    """Brokers reach each other and etcd through proxies that stop forwarding when a link is cut. Connections
    still come about over a cut link, and then nothing arrives."""

    LISTENER: Final = "INTERNAL"

    def __init__(self) -> None:
        self._proxies = Proxies()

    @override
    def place_etcd(self, etcd: EtcdProcess) -> None:
        """It stays where it is: each broker has a proxy in front of it."""

    @override
    def place_broker(self, node_id: int, broker: MillraceProcess, etcd: EtcdProcess) -> None:
        to_etcd = self._proxies.add((etcd.host, etcd.client_port), source=node(node_id), target=ETCD)
        inner = lasting_port()
        to_broker = self._proxies.add((broker.host, inner), source=None, target=node(node_id))
        broker.settings |= {
            "etcd.endpoints": f"http://127.0.0.1:{to_etcd}",
            "listeners": f"PLAINTEXT://{broker.bootstrap},{self.LISTENER}://127.0.0.1:{inner}",
            "advertised.listeners": f"PLAINTEXT://{broker.bootstrap},{self.LISTENER}://127.0.0.1:{to_broker}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{self.LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": self.LISTENER,
        }

    @override
    def cut(self, source: str, target: str) -> None:
        self._proxies.cut(source, target)

    @override
    def heal(self) -> None:
        self._proxies.heal()

    @override
    def close(self) -> None:
        self._proxies.close()


def choose_network(brokers: int) -> Network:
    wanted = os.environ.get(CHOICE)
    assert wanted in (None, "namespaces", "proxies"), f"{CHOICE}={wanted}"
    if wanted == "proxies":
        return ProxyNetwork()
    try:
        return NamespaceNetwork(brokers)
    except NotPermitted:
        if wanted == "namespaces":
            raise
        return ProxyNetwork()
