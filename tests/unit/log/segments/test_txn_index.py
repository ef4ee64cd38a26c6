"""The index of aborted transactions: the right ones for any range, without reading all of them."""

from __future__ import annotations

import random
import struct

import pytest

from millrace.core.override import override
from millrace.log.segments.txn_index import BLOCK_ENTRIES, ENTRY_SIZE, AbortedTransaction, TxnIndex
from millrace.sim.volume import SimFile, SimVolume

PATH = "/data/orders-0/00000000000000000000.txnindex"


class CountedFile(SimFile):
    """Counts the bytes that are read."""

    __slots__ = ("bytes_read",)

    def __init__(self, volume: SimVolume) -> None:
        super().__init__(volume, PATH, create=True)
        self.bytes_read = 0

    @override
    def read_at(self, position: int, size_bytes: int) -> bytes:
        self.bytes_read += size_bytes
        return super().read_at(position, size_bytes)


@pytest.fixture
def file(sim_volume: SimVolume) -> CountedFile:
    sim_volume.make_directory("/data/orders-0")
    return CountedFile(sim_volume)


def aborted_of(transactions: list[tuple[int, int]]) -> list[AbortedTransaction]:
    """In the order of their ends, each with the last stable offset of its time."""
    ordered = sorted(transactions, key=lambda each: each[1])
    return [
        AbortedTransaction(
            number,
            first,
            last,
            min((each[0] for each in ordered[number + 1 :] if each[0] <= last), default=last + 1),
        )
        for number, (first, last) in enumerate(ordered)
    ]


def touching(entries: list[AbortedTransaction], start: int, end: int) -> list[AbortedTransaction]:
    return [entry for entry in entries if entry.last_offset >= start and entry.first_offset < end]


@pytest.mark.parametrize("seed", range(6))
def test_every_range_gets_the_transactions_that_touch_it(file: CountedFile, seed: int) -> None:
    chance = random.Random(seed)
    lengths = (1, 5, 400, 3000)
    ends = sorted(chance.sample(range(10, 8000), BLOCK_ENTRIES * 3 + 17))
    entries = aborted_of([(max(end - chance.choice(lengths[: 1 + seed % 4]), 0), end) for end in ends])
    index = TxnIndex(file)
    for entry in entries:
        index.append(entry)
    for reopened in (index, TxnIndex(file)):
        for _ in range(200):
            start = chance.randrange(8100)
            end = start + chance.choice((1, 20, 500, 8000))
            found, is_complete = reopened.aborted_between(start, end)
            assert found == touching(entries, start, end)
            assert not is_complete or end <= entries[-1].last_offset
    assert index.all_aborted() == entries


def test_a_read_costs_the_same_however_many_transactions_were_aborted(file: CountedFile) -> None:
    cost: list[int] = []
    for count in (1_000, 20_000):
        index = TxnIndex(file)
        for number in range(index_size(file), count):
            index.append(AbortedTransaction(number, number * 3, number * 3 + 2, number * 3 + 3))
        worst = 0
        for start in range(0, count * 3, count // 7):
            file.bytes_read = 0
            found, _ = index.aborted_between(start, start + 30)
            assert 10 <= len(found) <= 12 or start + 30 > count * 3
            worst = max(worst, file.bytes_read)
        cost.append(worst)
    # Two blocks at most, and the search for the first.
    assert cost[1] <= 2 * BLOCK_ENTRIES * ENTRY_SIZE + 32 * 8, cost


def test_a_read_under_a_long_transaction_reads_no_block_twice_that_cannot_matter(file: CountedFile) -> None:
    """While it was open no short one moved the last stable offset, which would say where to stop."""
    count = 20_000
    index = TxnIndex(file)
    for number in range(1, count):
        index.append(AbortedTransaction(number, number * 3, number * 3 + 2, 0))
    long_one = AbortedTransaction(0, 0, count * 3, count * 3 + 1)
    index.append(long_one)
    expected = [AbortedTransaction(10, 30, 32, 0), long_one]
    assert index.aborted_between(30, 33) == (expected, True)
    file.bytes_read = 0
    assert index.aborted_between(30, 33) == (expected, True)
    # The block of the first, that of the long one, and the search.
    assert file.bytes_read <= 2 * BLOCK_ENTRIES * ENTRY_SIZE + 32 * 8


def test_a_reader_behind_all_of_them_reads_nothing(file: CountedFile) -> None:
    index = TxnIndex(file)
    for number in range(1000):
        index.append(AbortedTransaction(number, number * 3, number * 3 + 2, number * 3 + 3))
    assert index.aborted_between(3000, 4000) == ([], False)
    assert file.bytes_read == 0


def test_what_is_cut_off_is_forgotten_and_what_follows_is_found(file: CountedFile) -> None:
    index = TxnIndex(file)
    count = BLOCK_ENTRIES * 2 + 5
    for number in range(count):
        index.append(AbortedTransaction(number, number * 3, number * 3 + 2, 0))
    index.aborted_between(0, 10**6)
    cut = BLOCK_ENTRIES + 7
    index.truncate_to(cut * 3)
    assert file.size_bytes() == cut * ENTRY_SIZE
    later = [AbortedTransaction(9000 + number, 0, cut * 3 + number, 0) for number in range(BLOCK_ENTRIES)]
    for entry in later:
        index.append(entry)
    found, _ = index.aborted_between(cut * 3, cut * 3 + 1)
    assert found == later
    assert file.read_at(cut * ENTRY_SIZE, ENTRY_SIZE) == struct.pack(">hqqqq", 0, *later[0])


def index_size(file: CountedFile) -> int:
    return file.size_bytes() // ENTRY_SIZE
