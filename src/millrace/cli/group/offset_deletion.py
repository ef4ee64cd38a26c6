"""Deletion of committed offsets, through librdkafka itself: confluent-kafka has no call for it.

We call the library inside the confluent-kafka wheel by ctypes, so that it takes the same client properties
(TLS, SASL) as every other command.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from millrace.cli import clients
from millrace.cli.group.state import Partition
from millrace.cli.options import BrokerAddress

_PRODUCER: Final = 0
_DELETE_CONSUMER_GROUP_OFFSETS: Final = 8
_ERROR_BYTES: Final = 512


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("_private", ctypes.c_void_p),
    )


class _TopicPartitionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (
        ("cnt", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elems", ctypes.POINTER(_TopicPartition)),
    )


def delete_offsets(
    broker: BrokerAddress, group: str, partitions: Iterable[Partition]
) -> dict[Partition, str | None]:
    """Delete the group's offsets of these partitions; return what was wrong with each, or None."""
    library = _load_library()
    with _handle(library, clients.client_properties(broker)) as handle:
        return _delete(library, handle, group, list(partitions), broker.timeout_s)


def _delete(
    library: Any, handle: int, group: str, partitions: list[Partition], timeout_s: float
) -> dict[Partition, str | None]:
    wanted = library.rd_kafka_topic_partition_list_new(len(partitions))
    for topic, number in partitions:
        library.rd_kafka_topic_partition_list_add(wanted, topic.encode(), number)
    request = library.rd_kafka_DeleteConsumerGroupOffsets_new(group.encode(), wanted)
    library.rd_kafka_topic_partition_list_destroy(wanted)
    queue = library.rd_kafka_queue_new(handle)
    options = library.rd_kafka_AdminOptions_new(handle, _DELETE_CONSUMER_GROUP_OFFSETS)
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    library.rd_kafka_AdminOptions_set_request_timeout(options, int(timeout_s * 1000), text, _ERROR_BYTES)
    requests = (ctypes.c_void_p * 1)(request)
    library.rd_kafka_DeleteConsumerGroupOffsets(handle, requests, 1, options, queue)
    event = library.rd_kafka_queue_poll(queue, int(timeout_s * 1000) + 1000)
    try:
        if not event:
            raise clients.RequestFailed(f"{group}: no answer within {timeout_s:g} s")
        return _outcome(library, group, event)
    finally:
        if event:
            library.rd_kafka_event_destroy(event)
        library.rd_kafka_AdminOptions_destroy(options)
        library.rd_kafka_DeleteConsumerGroupOffsets_destroy(request)
        library.rd_kafka_queue_destroy(queue)


def _outcome(library: Any, group: str, event: int) -> dict[Partition, str | None]:
    if library.rd_kafka_event_error(event):
        raise clients.RequestFailed(f"{group}: {library.rd_kafka_event_error_string(event).decode()}")
    result = library.rd_kafka_event_DeleteConsumerGroupOffsets_result(event)
    count = ctypes.c_size_t()
    results = library.rd_kafka_DeleteConsumerGroupOffsets_result_groups(result, ctypes.byref(count))
    assert count.value == 1, count.value
    error = library.rd_kafka_group_result_error(results[0])
    if error:
        raise clients.RequestFailed(f"{group}: {library.rd_kafka_error_string(error).decode()}")
    found = library.rd_kafka_group_result_partitions(results[0]).contents
    outcome: dict[Partition, str | None] = {}
    for each in found.elems[: found.cnt]:
        text = library.rd_kafka_err2str(each.err).decode() if each.err else None
        outcome[each.topic.decode(), each.partition] = text
    return outcome


@contextmanager
def _handle(library: Any, properties: Mapping[str, str]) -> Iterator[int]:
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = library.rd_kafka_conf_new()
    for name, value in properties.items():
        if library.rd_kafka_conf_set(conf, name.encode(), value.encode(), text, _ERROR_BYTES):
            raise clients.RequestFailed(text.value.decode())
    handle = library.rd_kafka_new(_PRODUCER, conf, text, _ERROR_BYTES)
    if not handle:
        raise clients.RequestFailed(text.value.decode())
    try:
        yield handle
    finally:
        library.rd_kafka_destroy(handle)


def _load_library() -> Any:
    package = Path(confluent_kafka.__file__).parent
    # Where wheels for Linux and for macOS put their libraries.
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    path = str(bundled[0]) if bundled else ctypes.util.find_library("rdkafka")
    if path is None:
        raise clients.RequestFailed("librdkafka was found neither inside confluent-kafka nor on this system")
    library = ctypes.CDLL(path)
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "conf_new": (pointer, ()),
        "conf_set": (number, (pointer, text, text, text, size)),
        "new": (pointer, (number, pointer, text, size)),
        "destroy": (None, (pointer,)),
        "topic_partition_list_new": (pointer, (number,)),
        "topic_partition_list_add": (pointer, (pointer, text, ctypes.c_int32)),
        "topic_partition_list_destroy": (None, (pointer,)),
        "DeleteConsumerGroupOffsets_new": (pointer, (text, pointer)),
        "DeleteConsumerGroupOffsets_destroy": (None, (pointer,)),
        "DeleteConsumerGroupOffsets": (None, (pointer, pointer, size, pointer, pointer)),
        "DeleteConsumerGroupOffsets_result_groups": (ctypes.POINTER(pointer), (pointer, pointer)),
        "AdminOptions_new": (pointer, (pointer, number)),
        "AdminOptions_set_request_timeout": (number, (pointer, number, text, size)),
        "AdminOptions_destroy": (None, (pointer,)),
        "queue_new": (pointer, (pointer,)),
        "queue_poll": (pointer, (pointer, number)),
        "queue_destroy": (None, (pointer,)),
        "event_error": (number, (pointer,)),
        "event_error_string": (text, (pointer,)),
        "event_DeleteConsumerGroupOffsets_result": (pointer, (pointer,)),
        "event_destroy": (None, (pointer,)),
        "group_result_error": (pointer, (pointer,)),
        "group_result_partitions": (ctypes.POINTER(_TopicPartitionList), (pointer,)),
        "error_string": (text, (pointer,)),
        "err2str": (text, (number,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
