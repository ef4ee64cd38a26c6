"""Codecs: what we write every client reads, what we read is bounded by the caller's limit."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
import sys
import tracemalloc

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.wire.compression import (
    CODEC_NAMES,
    Codec,
    CorruptCompression,
    DecompressedTooLarge,
    compress,
    decompress,
)

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
LEVELS: dict[Codec, list[int | None]] = {
    Codec.NONE: [None],
    Codec.GZIP: [None, -1, 1, 9],
    Codec.SNAPPY: [None],
    Codec.LZ4: [None, 1, 9, 17],
    Codec.ZSTD: [None, -131072, -1, 1, 22],
}
NOISE = random.Random(7).randbytes(150_000)


@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
@pytest.mark.parametrize("data", [b"", b"a", b"abc" * 50_000, NOISE], ids=["empty", "one", "dense", "noise"])
def test_every_level_gives_the_same_bytes_back(codec: Codec, data: bytes) -> None:
    for level in LEVELS[codec]:
        packed = compress(codec, data, level)
        assert decompress(codec, packed, len(data)) == data
        assert decompress(codec, memoryview(packed), 10**8) == data


@given(data=st.binary(max_size=200_000), codec=st.sampled_from(Codec))
@settings(max_examples=40, deadline=None)
def test_any_bytes_survive(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


def test_other_peoples_decoders_read_what_we_write() -> None:
    data = b"some text, " * 20_000 + NOISE
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert lz4.frame.decompress(compress(Codec.LZ4, data)) == data
    assert aiokafka.codec.snappy_decode(compress(Codec.SNAPPY, data)) == data
    assert aiokafka.codec.zstd_decode(compress(Codec.ZSTD, data)) == data


def test_what_other_clients_write_is_read() -> None:
    data = b"some text, " * 20_000 + NOISE
    assert decompress(Codec.GZIP, gzip.compress(data), 10**7) == data
    for linked in (True, False):
        for size in (True, False):
            frame = lz4.frame.compress(data, block_linked=linked, store_size=size, content_checksum=True)
            assert decompress(Codec.LZ4, frame, 10**7) == data
    # librdkafka writes raw snappy, the Java client its own framing, also joined end to end.
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 10**7) == data
    framed = aiokafka.codec.snappy_encode(data, xerial_compatible=True)
    assert decompress(Codec.SNAPPY, framed + framed, 10**7) == data + data


def test_lz4_blocks_are_independent() -> None:
    # The Java client throws on linked blocks.
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, b"x" * 300_000))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024


@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_one_byte_over_the_limit_is_refused(codec: Codec) -> None:
    packed = compress(codec, NOISE)
    with pytest.raises(DecompressedTooLarge) as caught:
        decompress(codec, packed, len(NOISE) - 1)
    assert caught.value.limit_bytes == len(NOISE) - 1


@pytest.mark.parametrize("codec", COMPRESSING, ids=CODEC_NAMES.get)
def test_a_bomb_never_takes_more_than_the_limit(codec: Codec) -> None:
    # S5: 32 MB out of a few kilobytes.
    bomb = compress(codec, bytes(32_000_000))
    limit = 4_000_000
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A growing bytearray keeps an eighth in reserve.
    assert peak <= limit + limit // 8 + 100_000


RESIDENT = """
import resource, sys
from millrace.wire.compression import Codec, DecompressedTooLarge, compress, decompress
bombs = [open(path, "rb").read() for path in sys.argv[1:]]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in zip(list(Codec)[1:], bombs):
    try:
        decompress(codec, bomb, 4_000_000)
    except DecompressedTooLarge:
        continue
    raise SystemExit("not refused")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_bombs_resident_memory_is_bounded_in_the_codecs_too(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # tracemalloc does not see what the native libraries take.
    folder = tmp_path_factory.mktemp("bombs")
    paths = []
    for codec in COMPRESSING:
        path = folder / CODEC_NAMES[codec]
        path.write_bytes(compress(codec, bytes(32_000_000)))
        paths.append(str(path))
    result = subprocess.run(
        [sys.executable, "-c", RESIDENT, *paths], capture_output=True, text=True, check=True, timeout=20
    )
    # One output at a time, the codec's window and the library's own buffers.
    assert int(result.stdout) < 20 * 1024


@given(
    codec=st.sampled_from(COMPRESSING),
    place=st.integers(0, 400),
    value=st.integers(0, 255),
    cut=st.integers(0, 400),
)
@settings(max_examples=100, deadline=None)
def test_damage_gives_only_our_errors(codec: Codec, place: int, value: int, cut: int) -> None:
    packed = bytearray(compress(codec, NOISE[:300] + b"abc" * 40))
    packed[place % len(packed)] = value
    for damaged in (bytes(packed), bytes(packed[: cut % len(packed)])):
        with contextlib.suppress(CorruptCompression, DecompressedTooLarge):
            assert len(decompress(codec, damaged, 1000)) <= 1000


@given(codec=st.sampled_from(COMPRESSING), data=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_garbage_gives_only_our_errors(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptCompression, DecompressedTooLarge):
        assert len(decompress(codec, data, 1000)) <= 1000


def test_a_snappy_preamble_that_promises_the_world_is_refused_before_allocating() -> None:
    with pytest.raises(CorruptCompression):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", 2**40)
