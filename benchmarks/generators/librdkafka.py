"""librdkafka's producer called directly: the C library inside the confluent-kafka wheel, by ctypes.

Python's per-message work in confluent-kafka costs more than twice what librdkafka itself takes to queue a
message, so with small messages it would measure Python. Here one call queues thousands of prepared messages.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import confluent_kafka

MESSAGES_PER_CALL: Final = 2_000
_PRODUCER: Final = 0
_ERROR_TEXT_BYTES: Final = 512
# The payload stays ours and outlives every message: librdkafka neither copies nor frees it.
_NO_FLAGS: Final = 0


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class BatchProducer:
    """Queues the same value again and again, to the partitions of one topic in turns."""

    def __init__(self, settings: Mapping[str, str], topic: str, value: bytes, partitions: int = 1) -> None:
        self._library = _load_library()
        self._partitions = itertools.cycle(range(partitions))
        error_text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        for name, setting in settings.items():
            if self._library.rd_kafka_conf_set(
                conf, name.encode(), setting.encode(), error_text, _ERROR_TEXT_BYTES
            ):
                raise ValueError(error_text.value.decode())
        handle = self._library.rd_kafka_new(_PRODUCER, conf, error_text, _ERROR_TEXT_BYTES)
        if not handle:
            raise RuntimeError(error_text.value.decode())
        self._handle = ctypes.c_void_p(handle)
        self._topic = ctypes.c_void_p(self._library.rd_kafka_topic_new(self._handle, topic.encode(), None))
        self._value = ctypes.create_string_buffer(value, len(value))
        self._messages = (_Message * MESSAGES_PER_CALL)()
        for message in self._messages:
            message.payload = ctypes.addressof(self._value)
            message.len = len(value)

    def queue(self) -> int:
        """Queue up to MESSAGES_PER_CALL messages to the next partition; fewer if the queue is full."""
        return int(
            self._library.rd_kafka_produce_batch(
                self._topic,
                ctypes.c_int32(next(self._partitions)),
                _NO_FLAGS,
                self._messages,
                MESSAGES_PER_CALL,
            )
        )

    def poll(self, timeout_ms: int) -> None:
        self._library.rd_kafka_poll(self._handle, timeout_ms)

    def flush(self, timeout_ms: int) -> int:
        """Wait until everything is acknowledged; return the number of messages that are not."""
        self._library.rd_kafka_flush(self._handle, timeout_ms)
        return int(self._library.rd_kafka_outq_len(self._handle))

    def close(self) -> None:
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy(self._handle)


def _load_library() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    # Where wheels for Linux and for macOS put their libraries.
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    path = str(bundled[0]) if bundled else ctypes.util.find_library("rdkafka")
    if path is None:
        raise RuntimeError("librdkafka not found, neither inside confluent-kafka nor installed")
    library = ctypes.CDLL(path)
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_topic_new"):
        getattr(library, name).restype = ctypes.c_void_p
    return library
