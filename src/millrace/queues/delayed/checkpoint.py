"""The checkpoint of the index: which files it has, how long they are, and the state that goes with them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from millrace.queues.delayed.state import StoreState

VERSION: Final = 2

_HEAD: Final = struct.Struct(">hI")
_FIXED: Final = struct.Struct(">qqqqI")
_COUNT: Final = struct.Struct(">I")
_PAIR: Final = struct.Struct(">qq")
_FILE: Final = struct.Struct(">BqI")


class FileSum(NamedTuple):
    """A file of the index, as far as it counts."""

    name: str
    size_bytes: int
    crc: int


class Checkpoint(NamedTuple):
    """All that an index has to know at its start."""

    state: StoreState
    horizon_ms: int
    last_batch_offset: int
    last_batch_crc: int
    files: Sequence[FileSum]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    state = checkpoint.state
    parts = [
        _FIXED.pack(
            state.next_offset,
            state.first_offset,
            checkpoint.horizon_ms,
            checkpoint.last_batch_offset,
            checkpoint.last_batch_crc,
        )
    ]
    for pairs in (state.counts, state.open_intents):
        parts.append(_COUNT.pack(len(pairs)))
        parts += [_PAIR.pack(key, value) for key, value in pairs.items()]
    parts.append(_COUNT.pack(len(checkpoint.files)))
    for name, size_bytes, crc in checkpoint.files:
        parts += [_FILE.pack(len(name), size_bytes, crc), name.encode()]
    body = b"".join(parts)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """The checkpoint, or None if it is damaged or of another release."""
    if len(data) < _HEAD.size + _FIXED.size:
        return None
    version, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if version != VERSION or crc32c(body) != crc:
        return None
    next_offset, first_offset, horizon_ms, batch_offset, batch_crc = _FIXED.unpack_from(body)
    state = StoreState(next_offset)
    state.first_offset = first_offset
    position = _FIXED.size
    for pairs in (state.counts, state.open_intents):
        (count,) = _COUNT.unpack_from(body, position)
        position += _COUNT.size
        end = position + count * _PAIR.size
        pairs.update(_PAIR.iter_unpack(body[position:end]))
        position = end
    state.pending_count = sum(state.counts.values())
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    files = []
    for _ in range(count):
        length, size_bytes, file_crc = _FILE.unpack_from(body, position)
        position += _FILE.size
        files.append(FileSum(body[position : position + length].decode(), size_bytes, file_crc))
        position += length
    return Checkpoint(state, horizon_ms, batch_offset, batch_crc, files)
