"""Cancels and replaces delayed messages: by records with headers, like any producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import click

from millrace.cli import clients, settings
from millrace.core.override import override
from millrace.queues.delayed.model import CANCEL, DELIVER_AT, REPLACE

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from millrace.cli.options import BrokerAddress

SETTING: Final = "delayed.delivery.enable"
FORM: Final = "TOPIC:PARTITION:OFFSET"


class DelayedId(NamedTuple):
    """A delayed message as people write it: the offset is the one that its producer was told."""

    topic: str
    partition: int
    offset: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class _Record(NamedTuple):
    place: DelayedId
    key: bytes | None
    value: bytes | None
    headers: Headers


class Replacement(NamedTuple):
    """What takes the place of a delayed message."""

    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def parse_id(word: str) -> DelayedId:
    topic, _, place = word.partition(":")
    partition, _, offset = place.partition(":")
    if not topic or not partition.isdecimal() or not offset.isdecimal():
        raise click.BadParameter(f"{word!r} is not of the form {FORM}, such as reminders:0:42")
    return DelayedId(topic, int(partition), int(offset))


def require_delayed(address: BrokerAddress, topics: Sequence[str]) -> None:
    """Elsewhere these headers mean nothing, and the records would be messages like all others."""
    admin = clients.admin_client(address)
    for topic in topics:
        values = {
            each.name: each.value
            for each in settings.describe(admin, address, settings.topic_resource(topic))
        }
        if values.get(SETTING) != "true":
            raise clients.RequestFailed(f"{topic} takes no delayed messages: it needs {SETTING}=true")


def cancel(address: BrokerAddress, ids: Sequence[DelayedId]) -> list[str]:
    """Cancel messages; what failed, in words."""
    outcomes = _produce(
        address, [_Record(each, None, None, [(CANCEL, str(each.offset).encode())]) for each in ids]
    )
    return [f"{each}: {error}" for each, error in zip(ids, outcomes, strict=True) if isinstance(error, str)]


def replace(address: BrokerAddress, replaced: DelayedId, by: Replacement) -> DelayedId:
    """Put another message in the place of one that waits; the id of the new one."""
    headers: Headers = [
        *by.headers,
        (DELIVER_AT, str(by.due_ms).encode()),
        (REPLACE, str(replaced.offset).encode()),
    ]
    (outcome,) = _produce(address, [_Record(replaced, by.key, by.value, headers)])
    if isinstance(outcome, str):
        raise clients.RequestFailed(f"{replaced}: {outcome}")
    return replaced._replace(offset=outcome)


def _produce(address: BrokerAddress, records: Sequence[_Record]) -> list[int | str]:
    """The offset of each record, or why it has none."""
    outcomes: list[int | str] = [f"no answer within {address.timeout_s:g} s"] * len(records)
    producer = clients.producer(
        address, {"enable.idempotence": True, "message.timeout.ms": int(address.timeout_s * 1000)}
    )
    for number, (place, key, value, headers) in enumerate(records):

        def told(error: KafkaError | None, message: Message, number: int = number) -> None:
            outcomes[number] = clients.describe_error(error) if error is not None else message.offset() or 0

        with clients.explained(str(place)):
            producer.produce(
                place.topic,
                key=key,
                value=value,
                partition=place.partition,
                headers=headers,
                on_delivery=told,
            )
        producer.poll(0)
    producer.flush(address.timeout_s + 1)
    return outcomes
