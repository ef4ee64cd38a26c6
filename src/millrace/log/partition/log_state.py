"""What the batches of a log say of producers, leader epochs and aborted transactions.

This is read when somebody first asks: thousands of idle partitions must start fast and stay small.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.core.ids import NO_EPOCH
from millrace.log.errors import DiskFull, StorageError, TooLittleMemory, TooManyOpenFiles
from millrace.log.partition.aborted_bounds import AbortedBounds
from millrace.log.partition.isolation import past_damage
from millrace.log.state import producer_snapshots
from millrace.log.state.epochs import FILE_NAME as EPOCHS_FILE
from millrace.log.state.epochs import (
    LeaderEpochs,
    epochs_from_batches,
    is_contradicted,
    load_epochs,
    save_epochs,
)
from millrace.log.state.producer_state import ProducerStates

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


class LogState:
    """A part of PartitionLog: its producers, epochs and aborted transactions, each read when first needed."""

    __slots__ = (
        "_aborted_bounds",
        "_epochs",
        "_log",
        "are_epochs_saved",
        "latest_epoch",
        "loaded_producers",
    )

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.loaded_producers: ProducerStates | None = None
        """None until somebody asks for `producers`."""
        self.latest_epoch: int = NO_EPOCH
        """The latest of `epochs`, for the append path; NO_EPOCH until those are read."""
        self.are_epochs_saved = True
        self._epochs: LeaderEpochs | None = None
        self._aborted_bounds: AbortedBounds | None = None

    def adopt(self, producers: ProducerStates | None, epochs: LeaderEpochs | None) -> None:
        """Take over what somebody else has computed from the same batches."""
        self.loaded_producers = producers
        if epochs is not None:
            self._epochs = epochs
            self.latest_epoch = epochs.latest

    def succeed(self, original: LogState) -> None:
        """Take over the state of the log of which this one is a copy."""
        self.adopt(original.loaded_producers, original._epochs)
        # The copy of the epochs' file may be a little older.
        self.are_epochs_saved = False

    def forget_producers(self) -> None:
        """Have the next use read the producers again: memory may not say the same as the files."""
        self.loaded_producers = None

    # Producers

    @property
    def producers(self) -> ProducerStates:
        return self.loaded_producers if self.loaded_producers is not None else self.load_producers()

    def load_producers(self) -> ProducerStates:
        log = self._log
        if not log.is_closed:
            # This may load the producers, too.
            log.tail.require_open()
        if self.loaded_producers is None:
            self.loaded_producers = past_damage(
                log,
                lambda: producer_snapshots.load_producers(
                    log.home.volume,
                    log.path,
                    log.segment_list.all,
                    log_start_offset=log.log_start_offset,
                    end_offset=log.log_end_offset,
                    high_watermark=log.high_watermark,
                    now_ms=log.home.wall_ms(),
                ),
            )
        return self.loaded_producers

    # Leader epochs

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs if self._epochs is not None else self._load_epochs()

    def _load_epochs(self) -> LeaderEpochs:
        log = self._log
        epochs = load_epochs(log.home.volume, log.path)
        if epochs is not None:
            check = partial(is_contradicted, epochs, log.segment_list.all, end_offset=log.log_end_offset)
            epochs = None if past_damage(log, check) else epochs
        if epochs is None:
            # Unknown does not mean "epoch 0": the batches carry their epochs.
            epochs = past_damage(log, lambda: epochs_from_batches(log.segment_list.all))
        self._epochs = epochs
        self.latest_epoch = epochs.latest
        return epochs

    def start_epoch(self, epoch: int) -> None:
        """Write batches under this leader epoch from here on."""
        epochs = self.epochs
        assert epoch >= epochs.latest, (epoch, epochs.latest)
        if epochs.assign(epoch, self._log.log_end_offset):
            self.epochs_changed()
        self.latest_epoch = epochs.latest

    def epochs_changed(self) -> None:
        """Save the epochs now, or with the next flush if that is not possible: the batches carry them too."""
        self.latest_epoch = self.epochs.latest
        self.are_epochs_saved = False
        try:
            self.save_epochs()
        except (DiskFull, TooManyOpenFiles, TooLittleMemory):
            return
        except StorageError as error:
            self._log.home.write_refused(error)
            raise

    def save_epochs(self) -> None:
        """Write the epochs, unless their file says the same."""
        if self.are_epochs_saved:
            return
        log = self._log
        save_epochs(log.home.volume, log.path, self.epochs, durable=False)
        self.are_epochs_saved = True
        log.sync_later(f"{log.path}/{EPOCHS_FILE}")

    # Aborted transactions

    @property
    def aborted_bounds(self) -> AbortedBounds:
        if self._aborted_bounds is None:
            self._aborted_bounds = AbortedBounds()
        return self._aborted_bounds

    def forget_aborted_bounds(self) -> None:
        """Have the bounds made again, because the indexes of aborted transactions have changed."""
        self._aborted_bounds = None
