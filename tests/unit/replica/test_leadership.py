"""What a leader knows of its followers: who is in sync, and what is committed."""

from __future__ import annotations

from millrace.replica.leadership import UNKNOWN_OFFSET, Leadership

ME, FIRST, SECOND = 1, 2, 3
LAG_MS = 1_000


class Office:
    """A leader of three replicas with a log of so many records; times in ms."""

    def __init__(
        self, isr: tuple[int, ...] = (ME, FIRST, SECOND), *, end: int = 10, min_insync: int = 1
    ) -> None:
        self.end = end
        self.high_watermark = 0
        self.leadership = Leadership(ME, leader_epoch=5, epoch_start_offset=end, lag_ms_max=LAG_MS, now_ms=0)
        self.leadership.min_insync = min_insync
        self.say(isr, partition_epoch=1)

    def say(self, isr: tuple[int, ...], *, partition_epoch: int, now_ms: int = 0) -> None:
        self.leadership.update(
            replicas=(ME, FIRST, SECOND), isr=isr, partition_epoch=partition_epoch, now_ms=now_ms
        )

    def fetch(self, node_id: int, offset: int, now_ms: int = 0) -> bool:
        """Whether the fetch makes a change of the in-sync replicas due."""
        assert self.leadership.fetched(
            node_id, broker_epoch=7, offset=offset, log_start_offset=0, log_end_offset=self.end, now_ms=now_ms
        )
        self.high_watermark = max(self.high_watermark, self.committed())
        return self.leadership.note_high_watermark(node_id, self.high_watermark)

    def committed(self) -> int:
        return self.leadership.committed_up_to(self.end)

    def wish(self, now_ms: int = 0, absent: tuple[int, ...] = ()) -> tuple[int, ...] | None:
        return self.leadership.wish(
            log_end_offset=self.end,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
            is_eligible=lambda node_id: node_id not in absent,
        )


def test_nothing_is_committed_before_everybody_in_sync_has_shown_up() -> None:
    office = Office()
    assert office.committed() == UNKNOWN_OFFSET
    office.fetch(FIRST, 10)
    assert office.committed() == UNKNOWN_OFFSET
    office.fetch(SECOND, 8)
    assert office.committed() == 8


def test_a_replica_out_of_sync_holds_nothing_up() -> None:
    office = Office((ME, FIRST))
    office.fetch(FIRST, 9)
    office.fetch(SECOND, 2)
    assert office.committed() == 9


def test_below_min_insync_nothing_more_is_committed() -> None:
    """Whoever is left may lose its cache, and nobody may have relied on what it alone had (F4, KIP-966)."""
    office = Office((ME,), min_insync=2)
    assert not office.leadership.has_enough_replicas
    assert office.committed() == UNKNOWN_OFFSET
    office.say((ME, FIRST), partition_epoch=2)
    office.fetch(FIRST, 10)
    assert office.committed() == 10


def test_a_partition_cannot_demand_more_replicas_than_it_has() -> None:
    leadership = Leadership(ME, leader_epoch=0, epoch_start_offset=0, lag_ms_max=LAG_MS, now_ms=0)
    leadership.min_insync = 3
    leadership.update(replicas=(ME, FIRST), isr=(ME, FIRST), partition_epoch=0, now_ms=0)
    assert leadership.has_enough_replicas


def test_a_follower_joins_when_it_has_what_is_committed_and_what_the_epoch_began_with() -> None:
    office = Office((ME, FIRST), end=10)
    office.fetch(FIRST, 10)
    assert not office.fetch(SECOND, 9)
    assert office.wish() is None
    assert office.fetch(SECOND, 10)
    assert office.wish() == (ME, FIRST, SECOND)


def test_one_that_only_has_what_is_committed_does_not_join_a_new_leader() -> None:
    """The high watermark of a new leader may be behind what the old one acknowledged: it is the end of the
    log at the start of the epoch that counts (F1)."""
    office = Office((ME,), end=10, min_insync=2)
    assert office.high_watermark == 0
    assert not office.fetch(FIRST, 7)
    assert office.wish() is None


def test_a_wish_to_join_counts_before_it_is_granted() -> None:
    """It may be granted, and the new one be elected, before this broker hears of it."""
    office = Office((ME,), end=10)
    office.fetch(FIRST, 10)
    assert office.wish() == (ME, FIRST)
    office.end = 20
    assert office.committed() == 10
    office.leadership.refused()
    office.leadership.update(replicas=(ME, FIRST, SECOND), isr=(ME,), partition_epoch=2, now_ms=10 * LAG_MS)
    assert office.committed() == 20


def test_a_wish_to_shrink_counts_only_when_it_is_granted() -> None:
    office = Office(end=10)
    office.fetch(FIRST, 10)
    office.fetch(SECOND, 5)
    assert office.wish(now_ms=LAG_MS + 1) == (ME, FIRST)
    assert office.committed() == 5
    office.say((ME, FIRST), partition_epoch=2, now_ms=LAG_MS + 1)
    assert office.committed() == 10


def test_who_has_everything_is_in_sync_however_long_it_was_silent() -> None:
    office = Office(end=10)
    office.fetch(FIRST, 10)
    office.fetch(SECOND, 10)
    assert office.wish(now_ms=100 * LAG_MS) is None
    # From then on it can fall behind.
    office.end = 11
    assert office.wish(now_ms=101 * LAG_MS) is None
    assert office.wish(now_ms=101 * LAG_MS + 1) == (ME,)


def test_a_follower_that_keeps_the_pace_is_in_sync_though_it_never_reaches_the_end() -> None:
    office = Office((ME, FIRST), end=10)
    for step in range(1, 20):
        office.end = 10 * step
        office.fetch(FIRST, 10 * (step - 1), now_ms=step * LAG_MS // 2)
        assert office.wish(now_ms=step * LAG_MS // 2) is None


def test_a_silent_follower_is_given_its_time_and_then_left_behind() -> None:
    office = Office((ME, FIRST), end=10)
    assert office.wish(now_ms=LAG_MS) is None
    assert office.wish(now_ms=LAG_MS + 1) == (ME,)


def test_one_that_lost_committed_records_leaves_at_once() -> None:
    """A node that came back with an empty disk, or after damage, must not count as in sync (F7, F33)."""
    office = Office(end=10)
    office.fetch(FIRST, 10)
    office.fetch(SECOND, 10)
    assert office.high_watermark == 10
    assert office.fetch(SECOND, 0)
    assert office.wish() == (ME, FIRST)
    office.say((ME, FIRST), partition_epoch=2)
    assert not office.fetch(SECOND, 5)
    assert office.wish() is None
    assert office.fetch(SECOND, 10)
    assert office.wish() == (ME, FIRST, SECOND)


def test_one_that_is_not_there_does_not_join() -> None:
    office = Office((ME,), end=10)
    office.fetch(FIRST, 10)
    assert office.wish(absent=(FIRST,)) is None


def test_nobody_waits_for_one_that_was_put_out_or_fetches_no_more() -> None:
    """It kept up until it was stopped: what is written afterwards must not wait for it."""
    office = Office(end=10)
    office.fetch(FIRST, 10)
    office.fetch(SECOND, 10)
    office.say((ME, FIRST), partition_epoch=2)
    office.end = 11
    office.fetch(FIRST, 11)
    assert office.committed() == 11
    # It shows up once more, and is waited for again, until it is really gone.
    office.fetch(SECOND, 11)
    office.end = 12
    office.fetch(FIRST, 12)
    assert office.committed() == 11
    office.leadership.lost(SECOND)
    assert office.committed() == 12


def test_one_that_keeps_up_without_being_in_sync_is_waited_for_no_longer_than_its_lag() -> None:
    office = Office((ME,), end=10)
    office.fetch(FIRST, 10)
    office.end = 11
    assert office.committed() == 10
    office.leadership.tick(LAG_MS + 1)
    assert office.committed() == 11


def test_only_one_wish_at_a_time() -> None:
    office = Office((ME,), end=10)
    office.fetch(FIRST, 10)
    assert office.wish() == (ME, FIRST)
    office.fetch(SECOND, 10)
    assert office.wish() is None
    office.say((ME, FIRST), partition_epoch=2)
    assert office.wish() == (ME, FIRST, SECOND)


def test_an_older_state_says_nothing() -> None:
    office = Office((ME,), end=10)
    office.say((ME, FIRST), partition_epoch=5)
    office.say((ME, SECOND), partition_epoch=4)
    assert office.leadership.isr == (ME, FIRST)


def test_a_stranger_is_no_follower() -> None:
    office = Office()
    assert not office.leadership.fetched(
        9, broker_epoch=7, offset=10, log_start_offset=0, log_end_offset=10, now_ms=0
    )
    assert not office.leadership.note_high_watermark(9, 0)
    assert office.leadership.broker_epochs == {}
