"""Transactional producers of the Python clients in one process, driven by JSON lines: the twin of
TransactionHost.java, with the same commands. It decides nothing; it is killed from outside.

Every command names its producer and has an id; the answer carries the id, and an error if the call failed.
Producers are independent of each other: each has a thread, so that one may wait while others go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
CALL_S: Final = 30.0


class CallFailed(Exception):
    """A client's error by name, with what it says about what may be done next."""

    def __init__(self, error: str, message: str = "", *, is_fatal: bool = False) -> None:
        super().__init__(message or error)
        self.error = error
        self.is_fatal = is_fatal


class ConfluentActor:
    def __init__(self, config: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._producer: Any = Producer({"log_level": 0, "linger.ms": 2, **config})
        self._bootstrap = config["bootstrap.servers"]
        self._failures: list[str] = []
        self._consumers: dict[str, Any] = {}

    def run(self, op: str, command: dict[str, Any]) -> dict[str, Any]:
        from confluent_kafka import KafkaException

        try:
            return getattr(self, f"do_{op}")(**command) or {}
        except KafkaException as failed:
            error = failed.args[0]
            raise CallFailed(error.name(), error.str(), is_fatal=error.fatal()) from failed

    def do_init(self) -> None:
        self._producer.init_transactions(CALL_S)

    def do_begin(self) -> None:
        self._failures.clear()
        self._producer.begin_transaction()

    def do_send(self, records: list[list[Any]]) -> None:
        for topic, partition, value in records:
            self._producer.produce(topic, value=value, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(error.name())

    def do_flush(self) -> None:
        # Not `flush`, which fails with a SystemError when the producer has been fenced.
        deadline = time.monotonic() + CALL_S
        while len(self._producer) and time.monotonic() < deadline:
            self._producer.poll(0.01)
        if len(self._producer) or self._failures:
            raise CallFailed(self._failures[0] if self._failures else "timed out")

    def do_join(self, consumer: str, group: str, topic: str, config: dict[str, Any]) -> dict[str, Any]:
        """A member of the group: its metadata as of now are those that `offsets` sends later."""
        from confluent_kafka import Consumer

        member: Any = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **config,
            }
        )
        assigned = threading.Event()
        member.subscribe([topic], on_assign=lambda *_: assigned.set())
        values: list[str] = []
        while not (assigned.is_set() and values):
            message = member.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
        self._consumers[consumer] = (member, member.consumer_group_metadata())
        return {"values": values}

    def do_leave(self, consumer: str) -> None:
        self._consumers[consumer][0].close()

    def do_offsets(self, offsets: list[list[Any]], group: str = "", consumer: str = "") -> None:
        from confluent_kafka import Consumer, TopicPartition

        if consumer:
            metadata = self._consumers[consumer][1]
        else:
            stranger: Any = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
            metadata = stranger.consumer_group_metadata()
            stranger.close()
        wanted = [TopicPartition(topic, partition, offset) for topic, partition, offset in offsets]
        self._producer.send_offsets_to_transaction(wanted, metadata, CALL_S)

    def do_commit(self) -> None:
        self._producer.commit_transaction(CALL_S)

    def do_abort(self) -> None:
        self._producer.abort_transaction(CALL_S)

    def do_vanish(self) -> None:
        """Nothing: this process is killed instead."""

    def do_close(self) -> None:
        self._producer.close(0)


class AiokafkaActor:
    def __init__(self, config: dict[str, Any]) -> None:
        import aiokafka

        self._library = aiokafka
        self._sent: list[asyncio.Future[Any]] = []

        async def create() -> Any:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=config["bootstrap.servers"],
                transactional_id=config["transactional.id"],
                transaction_timeout_ms=config.get("transaction.timeout.ms", 60_000),
                linger_ms=2,
                retry_backoff_ms=20,
            )

        self._producer = on_loop(create())

    def run(self, op: str, command: dict[str, Any]) -> dict[str, Any]:
        from aiokafka.errors import KafkaError

        try:
            return on_loop(getattr(self, f"do_{op}")(**command)) or {}
        except KafkaError as failed:
            raise CallFailed(type(failed).__name__, str(failed)) from failed

    async def do_init(self) -> None:
        await self._producer.start()

    async def do_begin(self) -> None:
        self._sent.clear()
        await self._producer.begin_transaction()

    async def do_send(self, records: list[list[Any]]) -> None:
        for topic, partition, value in records:
            self._sent.append(await self._producer.send(topic, value=value.encode(), partition=partition))

    async def do_flush(self) -> None:
        for sent in self._sent:
            await sent

    async def do_offsets(self, offsets: list[list[Any]], group: str) -> None:
        wanted = {self._library.TopicPartition(*where): offset for *where, offset in offsets}
        await self._producer.send_offsets_to_transaction(wanted, group)

    async def do_commit(self) -> None:
        await self._producer.commit_transaction()

    async def do_abort(self) -> None:
        await self._producer.abort_transaction()

    async def do_vanish(self) -> None:
        """Nothing: this process is killed instead."""

    async def do_close(self) -> None:
        try:
            await asyncio.wait_for(self._producer.stop(), 5)
        except TimeoutError:
            return


KINDS: Final[dict[str, type[ConfluentActor | AiokafkaActor]]] = {
    "librdkafka": ConfluentActor,
    "aiokafka": AiokafkaActor,
}
_loop: asyncio.AbstractEventLoop | None = None


def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on the one event loop, which goes on in a thread of its own between the calls."""
    global _loop  # noqa: PLW0603 - one loop for one process
    if _loop is None:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop).result(CALL_S + 5)


def serve_producer(kind: str, config: dict[str, Any], commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    actor = KINDS[kind](config)
    while True:
        command = commands.get()
        answer: dict[str, Any] = {"answer": command.pop("id")}
        try:
            answer |= actor.run(command.pop("op"), command)
        except CallFailed as failed:
            answer |= {"error": failed.error, "message": str(failed), "fatal": failed.is_fatal}
        except Exception as bug:  # noqa: BLE001 - the answer must come; the test shows it
            answer |= {"error": type(bug).__name__, "message": repr(bug), "fatal": True}
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def main() -> None:
    producers: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("producer")
        if command["op"] == "open":
            producers[name] = queue.SimpleQueue()
            arguments = (command["kind"], command["config"], producers[name])
            threading.Thread(target=serve_producer, args=arguments, daemon=True).start()
        else:
            producers[name].put(command)
    # The test has ended: nobody waits for orderly farewells.
    os._exit(0)


if __name__ == "__main__":
    main()
