"""Where leader epochs begin and end, and what a file of them is worth."""

from __future__ import annotations

import pytest

from millrace.log.state.epochs import FILE_NAME, EpochStart, LeaderEpochs, load_epochs, save_epochs
from millrace.sim.volume import SimVolume


def epochs_of(*starts: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs([EpochStart(epoch, start_offset) for epoch, start_offset in starts])


def test_a_new_epoch_takes_the_place_of_what_contradicts_it() -> None:
    epochs = epochs_of((1, 0), (3, 10), (5, 20))
    assert not epochs.assign(5, 25), "it has begun already"
    assert epochs.assign(4, 15)
    assert epochs.starts == ((1, 0), (3, 10), (4, 15))
    assert epochs.latest == 4


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    epochs = epochs_of((1, 0), (3, 10))
    assert [epochs.end_offset_of(epoch, 30) for epoch in (0, 1, 2, 3, 4)] == [
        (0, 0),
        (1, 10),
        (1, 10),
        (3, 30),
        (-1, -1),
    ]
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 99)] == [1, 1, 3, 3]


def test_cuts_leave_the_epochs_of_what_is_left() -> None:
    epochs = epochs_of((1, 0), (3, 10), (5, 20))
    assert epochs.truncate_from_end(20)
    assert (epochs.starts, epochs.latest) == (((1, 0), (3, 10)), 3)
    assert epochs.truncate_from_start(15)
    assert epochs.starts == ((3, 15),)
    assert not epochs.truncate_from_start(15)


def test_what_was_saved_is_loaded(sim_volume: SimVolume) -> None:
    sim_volume.make_directory("/data")
    assert load_epochs(sim_volume, "/data") is None
    save_epochs(sim_volume, "/data", epochs_of((1, 0), (3, 10)), durable=True)
    loaded = load_epochs(sim_volume, "/data")
    assert loaded is not None
    assert loaded.starts == ((1, 0), (3, 10))


@pytest.mark.parametrize(
    "text", ["", "0\n2\n1 0\n", "0\n1\none 0\n", "0\n2\n3 10\n1 0\n", "0\n2\n1 10\n3 5\n", "9\n1\n1 0\n"]
)
def test_a_file_that_cannot_be_right_counts_as_lost(sim_volume: SimVolume, text: str) -> None:
    sim_volume.make_directory("/data")
    sim_volume.write_bytes(f"/data/{FILE_NAME}", text.encode())
    assert load_epochs(sim_volume, "/data") is None
