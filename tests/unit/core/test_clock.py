"""The machine's clock and its identifiers keep the promises of their interfaces."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from millrace.core.clock import SystemClock, SystemIdSource
from millrace.core.ids import NO_TOPIC_ID, format_topic_id, parse_topic_id


def test_wall_time_is_counted_in_whole_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert SystemClock().wall_ms() == 1_700_000_000_123


@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xFF])
def test_topic_ids_are_uuids_of_version_4_whatever_the_kernel_gives(
    monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: bytes([byte]) * size)
    topic_id = SystemIdSource().topic_id()
    read = uuid.UUID(bytes=bytes(topic_id))
    assert (read.version, read.variant) == (4, uuid.RFC_4122)
    # All other bits are the kernel's: 122 of the 128.
    assert (bytes(topic_id).count(byte)) >= 14
    assert topic_id != NO_TOPIC_ID


def test_topic_ids_differ_and_can_be_written_as_text() -> None:
    source = SystemIdSource()
    fresh = [source.topic_id() for _ in range(100)]
    assert len(set(fresh)) == 100
    assert [parse_topic_id(format_topic_id(topic_id)) for topic_id in fresh] == fresh
