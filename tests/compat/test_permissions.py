"""Who may do what, compared with Apache Kafka: the same permissions and the same requests for both, answer by
answer.

Every scenario (`tests/harness/permissions.py`) has a user of its own, so that all permissions can be made
before the first request."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka
import pytest

from millrace.security.acls.binding import Acl, Operation, ResourceType
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millrace.wire.messages.describe_acls import DescribeAclsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.harness.kafka import KafkaProcess
from tests.harness.millrace import MillraceProcess
from tests.harness.permissions import (
    CASES,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Grant,
    Scenario,
    codes_of,
    scenarios,
    told,
)
from tests.harness.process import BrokerProcess, eventually, free_port

pytestmark = pytest.mark.millrace_only

ADMIN: Final = "admin"
WORKER: Final = "worker"
BOUND_S: Final = 1.0
"""How long after its acknowledgement a change may not count yet."""
PASSWORD: Final = "secret"
CLOSED: Final = "the connection was closed"


class Asker:
    """A connection of a user."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), timeout=20.0)
        self.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        token = f"\0{name}\0{PASSWORD}".encode()
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=token))
        assert answer.error_code == 0, (name, answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, version: int, request: object) -> Any:
        """The response, or CLOSED."""
        flexible = schema.request_header_version(key, version) >= 2
        head = struct.pack(">hhih", key, version, 7, 4) + b"test" + (b"\0" if flexible else b"")
        body = head + schema.request_encoder(key, version)(request)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        size = self._receive(4)
        if len(size) < 4:
            return CLOSED
        data = self._receive(struct.unpack(">i", size)[0])
        header_bytes = 5 if schema.response_header_version(key, version) >= 1 else 4
        return schema.response_decoder(key, version)(data, header_bytes)

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data


class Stage:
    """A broker that checks permissions, with what the cases are about."""

    def __init__(self, broker: BrokerProcess, users: dict[str, Scenario]) -> None:
        self.broker = broker
        with Asker(broker, ADMIN) as admin:
            created = CreateTopicsRequest(
                topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)], timeout_ms=20_000
            )
            assert set(codes_of(admin.ask(ApiKey.CREATE_TOPICS, 7, created))) == {0}
            self.topic_id = self._topic_id(admin)
            for kind, name in enumerate((GROUP, TRANSACTIONAL_ID)):
                asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
                self._until_done(admin, ApiKey.FIND_COORDINATOR, 4, asked)
            for name in ("produce", "commit"):
                case = next(case for case in CASES if case.name == name)
                self._until_done(admin, case.key, case.version, case.make(self.topic_id))
            init = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=10_000)
            self._until_done(admin, ApiKey.INIT_PRODUCER_ID, 4, init)
            acls = [acl for user, each in users.items() for acl in each.acls(f"User:{user}")]
            answer = admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=list(map(_creation, acls))))
            assert set(codes_of(answer)) == {0}
            eventually(lambda: self._acls_count(admin) == len(set(acls)))

    def answer(self, case: Case, user: str) -> Any:
        with Asker(self.broker, user) as asker:
            return asker.ask(case.key, case.version, case.make(self.topic_id))

    def _topic_id(self, admin: Asker) -> bytes:
        found: list[bytes] = []

        def is_there() -> bool:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            (topic,) = admin.ask(ApiKey.METADATA, 12, request).topics
            found[:] = [topic.topic_id]
            return not topic.error_code and topic.partitions[0].leader_id >= 0

        eventually(is_there)
        return found[0]

    def _until_done(self, admin: Asker, key: ApiKey, version: int, request: object) -> None:
        eventually(lambda: set(codes_of(admin.ask(key, version, request))) == {0})

    def _acls_count(self, admin: Asker) -> int:
        everything = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        answer = admin.ask(ApiKey.DESCRIBE_ACLS, 3, everything)
        return sum(len(resource.acls) for resource in answer.resources)


def _creation(acl: Acl) -> AclCreation:
    return AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _settings(users: dict[str, Scenario]) -> dict[str, str]:
    known = " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMIN, WORKER, *users))
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker's own connections and those between controllers come without a name.
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{ADMIN}" password="{PASSWORD}" {known};'
        ),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _millrace(directory: Path, users: dict[str, Scenario]) -> BrokerProcess:
    broker = MillraceProcess(directory)
    other = free_port()
    broker.settings |= _settings(users) | {
        "node.id": "1",
        "listeners": f"CLIENT://127.0.0.1:{broker.port},PLAINTEXT://127.0.0.1:{other}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "advertised.listeners": f"CLIENT://127.0.0.1:{broker.port},PLAINTEXT://127.0.0.1:{other}",
    }
    return broker


def _kafka(directory: Path, users: dict[str, Scenario]) -> BrokerProcess:
    port, other, controller = free_port(), free_port(), free_port()
    listeners = f"CLIENT://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{other}"
    broker = KafkaProcess(
        directory,
        _settings(users)
        | {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": (
                "CLIENT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        },
    )
    broker.port = port
    return broker


@pytest.fixture(scope="module")
def users() -> dict[str, Scenario]:
    return {f"u{number}": scenario for number, scenario in enumerate(scenarios())}


@pytest.fixture(scope="module")
def stages(
    tmp_path_factory: pytest.TempPathFactory, users: dict[str, Scenario]
) -> Iterator[tuple[Stage, Stage]]:
    brokers = [
        _millrace(tmp_path_factory.mktemp("millrace"), users),
        _kafka(tmp_path_factory.mktemp("kafka"), users),
    ]
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        yield Stage(brokers[0], users), Stage(brokers[1], users)
    finally:
        for broker in brokers:
            broker.end()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_answer_alike(stages: tuple[Stage, Stage], users: dict[str, Scenario], case: Case) -> None:
    ours, theirs = stages
    for user, scenario in users.items():
        if scenario.case is not case:
            continue
        answers = [stage.answer(case, user) for stage in (ours, theirs)]
        assert told(answers[0]) == told(answers[1]), (scenario.name, *answers)


class Worker:
    """librdkafka's producer and consumer of one user, at work in threads."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        login = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": WORKER,
            "sasl.password": PASSWORD,
            "log_level": 0,
        }
        self._topic = topic
        self._producer: Any = confluent_kafka.Producer({**login, "linger.ms": 0, "message.timeout.ms": 5_000})
        self._consumer: Any = confluent_kafka.Consumer(
            {**login, "group.id": GROUP, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        )
        self._consumer.subscribe([topic])
        self.written_at: list[float] = []
        self.read_at: list[float] = []
        self.refusals: set[str] = set()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def _write(self) -> None:
        while not self._is_over.is_set():
            try:
                self._producer.produce(self._topic, b"value", on_delivery=self._delivered)
            except confluent_kafka.KafkaException as error:
                # It knows already that it may not.
                self._delivered(error.args[0], None)
            self._producer.poll(0.01)
        self._producer.flush(5)

    def _delivered(self, error: Any, _message: object) -> None:
        if error is None:
            self.written_at.append(time.monotonic())
        else:
            self.refusals.add(f"write {error.name()}")

    def _read(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                self.read_at.append(time.monotonic())
            else:
                self.refusals.add(f"read {message.error().name()}")


def test_nobody_goes_on_working_once_the_permission_is_gone(stages: tuple[Stage, Stage]) -> None:
    broker, topic = stages[0].broker, "worked"
    principal = f"User:{WORKER}"
    grants = [
        Grant(operation, kind, name).acl(principal)
        for operation, kind, name in (
            (Operation.WRITE, ResourceType.TOPIC, topic),
            (Operation.READ, ResourceType.TOPIC, topic),
            (Operation.READ, ResourceType.GROUP, GROUP),
        )
    ]
    with Asker(broker, ADMIN) as admin:
        created = CreateTopicsRequest(
            topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)], timeout_ms=20_000
        )
        assert set(codes_of(admin.ask(ApiKey.CREATE_TOPICS, 7, created))) == {0}
        allow = CreateAclsRequest(creations=list(map(_creation, grants)))
        assert set(codes_of(admin.ask(ApiKey.CREATE_ACLS, 3, allow))) == {0}
        worker = Worker(broker, topic)
        try:
            eventually(lambda: len(worker.written_at) > 50 and len(worker.read_at) > 50)
            everything = DeleteAclsFilter(
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter=principal,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            answer = admin.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=[everything]))
            gone_at = time.monotonic()
            assert len(answer.filter_results[0].matching_acls) == len(grants)
            eventually(lambda: len(worker.refusals) == 2)
            time.sleep(2 * BOUND_S)
        finally:
            worker.end()
    assert max(worker.written_at) < gone_at + BOUND_S
    assert max(worker.read_at) < gone_at + BOUND_S
    assert "write TOPIC_AUTHORIZATION_FAILED" in worker.refusals
    assert worker.refusals & {"read TOPIC_AUTHORIZATION_FAILED", "read GROUP_AUTHORIZATION_FAILED"}
