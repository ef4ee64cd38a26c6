"""A partition's log against a model of it, through every operation, orderly ends and crashes, on both
volumes.
"""

from __future__ import annotations

import random
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.override import override
from millrace.log.config import LogConfig
from millrace.log.disk.volume import DiskVolume, Volume
from millrace.log.errors import CorruptLog
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.quarantine import DamagedRange
from millrace.sim.volume import SimVolume
from millrace.wire.records import read_records, split_batches
from tests.unit.log.support import NOW_MS, Disk, batch_of

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=250, file_delete_delay_ms=0, retention_ms=-1)
PRODUCER = 7


class LogModel(RuleBasedStateMachine):
    """`batches` is what the log was told and has not been told to forget: base offset to values."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[int, tuple[bytes, ...]] = {}
        self.sequence = 0
        self.last_sent: tuple[int, memoryview] | None = None
        self.counter = 0
        self.disk = Disk(self.make_volume(), self.make_path(), CONFIG)
        self.log: PartitionLog = self.disk.log()

    def make_volume(self) -> Volume:
        return SimVolume(random.Random(1))

    def make_path(self) -> str:
        return "/data"

    @override
    def teardown(self) -> None:
        self.disk.abandon()
        self.disk.dispose()

    # What a user does

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), idempotent=st.booleans())
    def append(self, count: int, size: int, idempotent: bool) -> None:
        self.counter += 1
        values = tuple(b"%d:%d:" % (self.counter, number) + bytes(size) for number in range(count))
        end = self.log.log_end_offset
        producer_id = PRODUCER if idempotent else -1
        batch = batch_of(
            *values, producer_id=producer_id, sequence=self.sequence, timestamp=NOW_MS + self.counter
        )
        sent = memoryview(bytearray(batch))
        appended = self.log.append_as_leader(batch, max(self.log.latest_epoch, 0), NOW_MS)
        assert appended[:2] == (end, end + count - 1)
        assert not appended.duplicate
        self.log.high_watermark = self.log.log_end_offset
        self.batches[end] = values
        if idempotent:
            self.sequence += count
            self.last_sent = end, sent

    @rule(count=st.integers(1, 4), size=st.integers(0, 120))
    def append_several_at_once(self, count: int, size: int) -> None:
        """Without a producer id, so that nothing but room in the segment parts them."""
        offset = self.log.log_end_offset
        for _ in range(count):
            self.counter += 1
            value = b"%d:" % self.counter + bytes(size)
            batch = batch_of(value, timestamp=NOW_MS + self.counter)
            self.log.append_as_leader(batch, max(self.log.latest_epoch, 0), NOW_MS, token=value)
            self.batches[offset] = (value,)
            offset += 1
        self.log.write_staged()
        assert self.log.log_end_offset == offset
        self.log.high_watermark = offset

    @precondition(lambda self: self.last_sent is not None)
    @rule()
    def send_the_last_batch_again(self) -> None:
        assert self.last_sent is not None
        offset, batch = self.last_sent
        appended = self.log.append_as_leader(
            memoryview(bytearray(batch)), max(self.log.latest_epoch, 0), NOW_MS
        )
        assert appended.duplicate
        assert appended.base_offset == offset

    @rule()
    def begin_an_epoch(self) -> None:
        self.log.start_epoch(self.log.latest_epoch + 1)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.disk.run(self.disk.directory.flush_dirty())
        assert self.log.flushed_offset == self.log.log_end_offset

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 3000), limit_share=st.floats(0, 1))
    def read(self, share: float, max_bytes: int, limit_share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(share * (end - start))
        bases = [base for base in self.batches if base > offset]
        limit = end if not bases else sorted([*bases, end])[int(limit_share * len(bases))]
        found = self.read_batches(offset, max_bytes, limit)
        wanted = [
            (base, values)
            for base, values in sorted(self.batches.items())
            if base + len(values) > offset and base < limit
        ]
        assert found == wanted[: len(found)]
        assert bool(found) == bool(wanted)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(share * (end - start))
        self.disk.run(self.log.truncate_to(offset))
        assert self.log.log_end_offset <= offset
        self.forget_from(self.log.log_end_offset)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(share * (end - start))
        self.disk.run(self.log.delete_records_before(offset))
        assert self.log.log_start_offset == offset

    @rule(retention_bytes=st.integers(0, 4000))
    def apply_retention(self, retention_bytes: int) -> None:
        config = LogConfig(
            segment_bytes=CONFIG.segment_bytes,
            index_interval_bytes=CONFIG.index_interval_bytes,
            retention_bytes=retention_bytes,
            retention_ms=-1,
        )
        end = self.log.log_end_offset
        self.log.set_config(config)
        self.log.delete_old_segments(NOW_MS)
        self.log.set_config(CONFIG)
        assert self.log.log_end_offset == end

    @rule()
    def end_in_order_and_start_again(self) -> None:
        before = self.log.log_start_offset, self.log.log_end_offset
        epoch = self.log.latest_epoch
        self.log = self.disk.reopen()
        assert (self.log.log_start_offset, self.log.log_end_offset) == before
        assert self.log.latest_epoch == epoch
        self.log.high_watermark = self.log.log_end_offset

    @rule()
    def die_and_start_again(self) -> None:
        before = self.log.log_start_offset, self.log.log_end_offset
        self.disk.abandon()
        self.disk.open()
        self.log = self.disk.log()
        # The page cache survives the process: nothing is missing.
        assert self.log.log_end_offset == before[1]
        if self.last_sent is not None and self.last_sent[0] < self.log.segments[0].base_offset:
            # A batch whose file was deleted cannot testify for its producer any more.
            self.forget_from(self.log.log_end_offset)
        self.log.high_watermark = self.log.log_end_offset

    # What must hold

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        assert log.flushed_offset <= log.log_end_offset
        bases = [segment.base_offset for segment in log.segments]
        assert bases == sorted(set(bases))

    @invariant()
    def index_entries_point_at_their_batches(self) -> None:
        for segment in self.log.segments[-2:]:
            if segment.size_bytes == 0:
                continue
            last_offsets = {position: header[0] + header[6] for position, header in segment.headers()}
            for relative_offset, position in segment.offset_index.entries():
                assert last_offsets[position] == segment.base_offset + relative_offset
            times = segment.time_index.entries()
            assert times == sorted(set(times))

    # Helpers

    def read_batches(self, offset: int, max_bytes: int, limit: int) -> list[tuple[int, tuple[bytes, ...]]]:
        found = self.log.read(offset, max_bytes, limit, True)
        batches = []
        for batch in split_batches(memoryview(found.read())):
            records = read_records(batch)
            batches.append((records[0].offset, tuple(record.value or b"" for record in records)))
        if len(batches) > 1:
            assert found.size_bytes <= max_bytes
        return batches

    def forget_from(self, end: int) -> None:
        self.batches = {base: values for base, values in self.batches.items() if base + len(values) <= end}
        self.last_sent = None
        # What the producer did after that is gone; the next one starts where the log remembers it.
        entry = self.log.producers.entries.get(PRODUCER)
        self.sequence = 0 if entry is None else entry.last_sequence + 1


class LogModelWithPowerLoss(LogModel):
    """Only here: the disk forgets what was not synced."""

    @rule(seed=st.integers(0, 2**16), lose_everything=st.booleans())
    def lose_power(self, seed: int, lose_everything: bool) -> None:
        volume = self.disk.volume
        assert isinstance(volume, SimVolume)
        volume.chance.seed(seed)
        flushed = self.log.flushed_offset
        end = self.log.log_end_offset
        self.disk.abandon()
        volume.crash(lose_everything=lose_everything)
        self.disk.open()
        self.log = self.disk.log()
        self.log.high_watermark = self.log.log_end_offset
        assert flushed <= self.log.log_end_offset <= end
        lost = [damaged for segment in self.log.segments for damaged in segment.damage]
        for damaged in lost:
            assert damaged.first_offset >= flushed, (damaged, flushed)
            first = max(damaged.first_offset, self.log.log_start_offset)
            if first >= damaged.next_offset:
                continue
            with pytest.raises(CorruptLog) as refused:
                self.log.read(first, 1 << 20, end, True)
            assert refused.value.next_offset == damaged.next_offset
        self.forget_from(self.log.log_end_offset)
        for base in [
            base for base in self.batches if any(d.first_offset <= base < d.next_offset for d in lost)
        ]:
            del self.batches[base]
        for base, values in self.batches.items():
            if base >= self.log.log_start_offset:
                assert self.read_batches(base, 1, end) == [(base, values)]
        if lost:
            self.die_unmended(lost)
            # Going on with holes is another test's matter: here they would only hide other faults.
            self.disk.run(
                self.log.truncate_to(max(min(d.first_offset for d in lost), self.log.log_start_offset))
            )
            self.log.high_watermark = self.log.log_end_offset
            self.forget_from(self.log.log_end_offset)

    def die_unmended(self, lost: list[DamagedRange]) -> None:
        """By now the recovery point lies behind what is lost."""
        self.disk.abandon()
        self.disk.open()
        self.log = self.disk.log()
        assert [damaged for segment in self.log.segments for damaged in segment.damage] == lost


def after_power_loss() -> LogModelWithPowerLoss:
    """A log that was told of its power loss before anything happened, as in the examples below."""
    model = LogModelWithPowerLoss()
    model.flush()
    model.lose_power(lose_everything=False, seed=0)
    model.append_several_at_once(count=1, size=0)
    model.roll()
    return model


@pytest.mark.parametrize("limit_share", [0.0, 1.0])
def test_a_closed_segment_that_lost_all_it_held(limit_share: float) -> None:
    """Found by the model: the next segment was there, and a read at 0 gave offset 1."""
    model = after_power_loss()
    model.append_several_at_once(count=1, size=0)
    model.apply_retention(retention_bytes=71)
    model.append_several_at_once(count=1, size=0)
    model.lose_power(lose_everything=False, seed=1)
    model.offsets_are_in_order()
    model.read(limit_share=limit_share, max_bytes=1, share=0.0)
    model.teardown()


def test_a_log_that_is_cut_where_a_closed_segment_lost_its_end() -> None:
    """Found by the model: the log's end went back behind the high watermark when it was looked at."""
    model = after_power_loss()
    model.apply_retention(retention_bytes=1)
    model.append_several_at_once(count=2, size=0)
    model.apply_retention(retention_bytes=141)
    model.append_several_at_once(count=1, size=0)
    model.lose_power(lose_everything=False, seed=440)
    model.index_entries_point_at_their_batches()
    model.offsets_are_in_order()
    model.append(count=1, size=0, idempotent=False)
    model.offsets_are_in_order()
    model.teardown()


def test_what_was_written_after_a_cut_is_not_flushed_because_what_was_cut_off_was() -> None:
    """Found by the model: the recovery point stayed behind what took the place of the lost records."""
    model = LogModelWithPowerLoss()
    model.append(count=2, size=0, idempotent=False)
    model.die_and_start_again()
    model.truncate(share=0.5)
    model.append(count=1, size=0, idempotent=False)
    model.roll()
    model.die_and_start_again()
    model.lose_power(lose_everything=False, seed=0)
    model.offsets_are_in_order()
    model.teardown()


def test_a_log_whose_only_file_was_never_flushed_keeps_its_start() -> None:
    """Found by the model: it was forgotten with the first append, and offsets were given again."""
    model = LogModelWithPowerLoss()
    model.end_in_order_and_start_again()
    model.append_several_at_once(count=1, size=0)
    model.apply_retention(retention_bytes=0)
    model.delete_records(share=0.0)
    model.lose_power(lose_everything=False, seed=0)
    model.append(count=1, size=0, idempotent=False)
    model.delete_records(share=0.0)
    model.lose_power(lose_everything=False, seed=0)
    assert model.log.log_start_offset == 1
    model.teardown()


class LogModelOnDisk(LogModel):
    @override
    def make_volume(self) -> Volume:
        return DiskVolume(open_files_max=3)

    @override
    def make_path(self) -> str:
        self.temporary = tempfile.mkdtemp(prefix="millrace-log-")
        return self.temporary

    @override
    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.temporary)


_QUICK = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestLogInMemory = LogModelWithPowerLoss.TestCase
TestLogInMemory.settings = settings(max_examples=60, stateful_step_count=30, **_QUICK)  # type: ignore[arg-type]
TestLogOnDisk = LogModelOnDisk.TestCase
TestLogOnDisk.settings = settings(max_examples=12, stateful_step_count=25, **_QUICK)  # type: ignore[arg-type]
