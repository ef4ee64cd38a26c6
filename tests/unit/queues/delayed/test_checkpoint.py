"""A checkpoint comes back as it was, or not at all."""

from __future__ import annotations

from millrace.queues.delayed.checkpoint import Checkpoint, FileSum, decode_checkpoint, encode_checkpoint
from millrace.queues.delayed.state import StoreState


def example() -> Checkpoint:
    state = StoreState(40)
    state.next_offset = 90
    state.counts = {0: 3, 7: 1}
    state.pending_count = 4
    state.open_intents = {80: 41}
    return Checkpoint(state, 3_600_000, 70, 2**32 - 1, [FileSum("m7", 48, 5), FileSum("m7.done", 8, 6)])


def test_a_checkpoint_comes_back() -> None:
    found = decode_checkpoint(encode_checkpoint(example()))
    assert found is not None
    assert found[1:] == example()[1:]
    for name in ("next_offset", "first_offset", "counts", "pending_count", "open_intents"):
        assert getattr(found.state, name) == getattr(example().state, name), name


def test_any_flipped_bit_and_any_missing_byte_is_noticed() -> None:
    data = encode_checkpoint(example())
    for position in range(len(data)):
        assert decode_checkpoint(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]) is None
        assert decode_checkpoint(data[:position]) is None
