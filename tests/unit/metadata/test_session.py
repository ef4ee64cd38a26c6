"""A broker's lease: it stops leading before others may replace it, comes back by itself, and does not rest on
what its last run may have lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from millrace.core.background import ATTEMPTS_MAX, Background
from millrace.core.override import override
from millrace.metadata.committing import OPEN_MS_MAX
from millrace.metadata.errors import NodeIdInUse, StoreUnavailable
from millrace.metadata.image import NO_LEADER
from millrace.metadata.session import MARGIN_SHARE, TAKEOVER_GRACE_MS, BrokerSession, Tenure
from millrace.metadata.store import Compare, LeaseId, Put
from millrace.sim.store import MemoryStore
from tests.unit.metadata.brokers import TIMEOUT_MS, LocalBroker, cluster_of
from tests.unit.metadata.virtual_time import pass_time, run_virtually


class TestTenure:
    def test_the_lease_counts_from_the_time_the_renewal_was_sent(self) -> None:
        tenure = Tenure()
        tenure.renewed(100.0, 10_000)
        assert tenure.is_certain(100.0 + 10 * (1 - MARGIN_SHARE) - 0.001)
        assert not tenure.is_certain(100.0 + 10 * (1 - MARGIN_SHARE))

    def test_nothing_is_certain_before_the_first_renewal_and_after_the_end(self) -> None:
        tenure = Tenure()
        assert not tenure.is_certain(0.0)
        tenure.renewed(100.0, 10_000)
        tenure.end()
        assert not tenure.is_certain(100.0)

    def test_a_late_answer_takes_no_time_away(self) -> None:
        tenure = Tenure()
        tenure.renewed(100.0, 10_000)
        tenure.renewed(95.0, 10_000)
        assert tenure.is_certain(108.0)


class SlowStore(MemoryStore):
    """Renewals arrive at once, their answers late."""

    answer_delay_s = 0.0

    @override
    async def keep_alive(self, lease_id: LeaseId) -> int:
        ttl_ms = await super().keep_alive(lease_id)
        await asyncio.sleep(self.answer_delay_s)
        return ttl_ms


class DeafenedStore(MemoryStore):
    """Requests are carried out, and at some time their answers are lost."""

    is_deafened = False

    @override
    async def keep_alive(self, lease_id: LeaseId) -> int:
        return self._heard(await super().keep_alive(lease_id))

    @override
    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        return self._heard(await super().commit(compares=compares, puts=puts, deletes=deletes))

    @override
    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        lease_id = await super().grant_lease(ttl_ms)
        self._heard(lease_id)
        return lease_id

    def _heard(self, answer: int) -> int:
        if self.is_deafened:
            raise StoreUnavailable("no answer")
        return answer

    async def is_registered(self, node_id: int) -> bool:
        return f"brokers/{node_id}" in (await self.load()).entries


def test_a_broker_that_is_heard_and_hears_nothing_loses_its_place() -> None:
    """It leads nothing by then; as long as its renewals count, nobody else would."""

    async def body() -> None:
        store = DeafenedStore()
        async with cluster_of(1, store=store) as cluster:
            await asyncio.sleep(10)
            assert await store.is_registered(1)
            store.is_deafened = True
            await asyncio.sleep(4 * TIMEOUT_MS / 1000)
            assert cluster.any.session.is_fenced
            assert not await store.is_registered(1)
            store.is_deafened = False
            await asyncio.sleep(30)
            assert await store.is_registered(1)
            assert not cluster.any.session.is_fenced

    run_virtually(body())


def test_a_broker_stays_registered_for_as_long_as_the_store_answers() -> None:
    async def body() -> None:
        async with cluster_of(1) as cluster:
            epoch = cluster.any.metadata.image.brokers[cluster.any.node_id].epoch
            await asyncio.sleep(3_600)
            assert cluster.any.metadata.image.brokers[cluster.any.node_id].epoch == epoch
            assert not cluster.any.session.is_fenced

    run_virtually(body())


def test_a_cut_off_broker_stops_leading_before_its_lease_ends() -> None:
    async def body() -> None:
        async with cluster_of(1) as cluster:
            broker = cluster.any
            await asyncio.sleep(60)
            cut_at_s = asyncio.get_running_loop().time()
            cluster.store.set_available(False)
            await asyncio.sleep(60)
            assert broker.session.is_fenced
            (fenced_at_s,) = broker.fenced_at_s
            # The lease was renewed at most a second before the cut, and ends six seconds after that.
            assert cut_at_s < fenced_at_s <= cut_at_s + TIMEOUT_MS / 1000 * (1 - MARGIN_SHARE)
            cluster.store.set_available(True)
            await asyncio.sleep(60)
            assert not broker.session.is_fenced

    run_virtually(body())


def test_time_that_an_answer_takes_is_not_counted_for_the_lease() -> None:
    async def body() -> None:
        store = SlowStore()
        async with cluster_of(1, store=store) as cluster:
            broker = cluster.any
            await asyncio.sleep(10)
            epoch = broker.metadata.image.brokers[broker.node_id].epoch
            # Counted from its answer, every renewal would come in time.
            store.answer_delay_s = TIMEOUT_MS / 1000 - 1.0
            await asyncio.sleep(30)
            assert broker.fenced_at_s
            assert broker.metadata.image.brokers[broker.node_id].epoch == epoch
            store.answer_delay_s = 0.0
            await asyncio.sleep(30)
            assert not broker.session.is_fenced

    run_virtually(body())


def test_who_stood_still_past_its_lease_is_fenced_before_its_timers_say_so() -> None:
    """F11: the loop may hand over requests that came meanwhile before it looks at the time."""

    async def body() -> None:
        async with cluster_of(1) as cluster:
            broker = cluster.any
            await asyncio.sleep(10)
            broker.session.check_time()
            pass_time(2 * TIMEOUT_MS / 1000)
            assert broker.fenced_at_s == []
            broker.session.check_time()
            assert len(broker.fenced_at_s) == 1
            await asyncio.sleep(30)
            assert not broker.session.is_fenced

    run_virtually(body())


def test_after_a_short_outage_the_registration_is_the_same() -> None:
    async def body() -> None:
        async with cluster_of(1) as cluster:
            broker = cluster.any
            await asyncio.sleep(10)
            epoch = broker.metadata.image.brokers[broker.node_id].epoch
            cluster.store.set_available(False)
            await asyncio.sleep(TIMEOUT_MS / 3000)
            cluster.store.set_available(True)
            await asyncio.sleep(60)
            assert broker.metadata.image.brokers[broker.node_id].epoch == epoch
            assert broker.fenced_at_s == []

    run_virtually(body())


def test_after_a_long_outage_a_broker_registers_again_without_a_restart() -> None:
    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            await cluster.create_topic({0: [1, 2]})
            epochs = [state.epoch for state in cluster.any.metadata.image.brokers.values()]
            before = cluster.partition()
            cluster.store.set_available(False)
            await asyncio.sleep(60)
            cluster.store.set_available(True)
            await asyncio.sleep(60)
            after = [state.epoch for state in cluster.any.metadata.image.brokers.values()]
            assert len(after) == 2
            assert min(after) > max(epochs)
            # Both lost their leases at once, so whoever leads now is one that had everything.
            assert cluster.partition().leader in (1, 2)
            assert cluster.partition().leader_epoch > before.leader_epoch

    run_virtually(body())


def test_a_broker_declared_dead_stops_leading_at_once_and_comes_back() -> None:
    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            await cluster.create_topic({0: [1, 2]})
            first, second = cluster.brokers[1], cluster.brokers[2]
            incarnation = first.session.incarnation
            await second.metadata.declare_dead(first.node_id, "another run")
            await asyncio.sleep(1)
            assert not first.fenced_at_s
            await second.metadata.declare_dead(first.node_id, incarnation)
            await cluster.until_led_by(2)
            assert len(first.fenced_at_s) == 1
            await asyncio.sleep(1)
            assert not first.session.is_fenced
            assert first.metadata.image.brokers[first.node_id].incarnation == incarnation

    run_virtually(body())


def test_a_broker_that_is_about_to_leave_does_not_come_back_when_others_are_quicker() -> None:
    """They find its port closed while it still brings its logs to the disk."""

    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            await cluster.create_topic({0: [1, 2]})
            first, second = cluster.brokers[1], cluster.brokers[2]
            first.session.will_leave()
            await second.metadata.declare_dead(first.node_id, first.session.incarnation)
            await cluster.until_led_by(2)
            await asyncio.sleep(10)
            assert first.session.is_fenced
            assert list(second.metadata.image.brokers) == [2]

    run_virtually(body())


def test_leaving_ends_the_registration_at_once_and_the_membership_never() -> None:
    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            await cluster.brokers.pop(1).stop()
            await asyncio.sleep(0.1)
            assert list(cluster.any.metadata.image.brokers) == [2]
            assert cluster.any.metadata.image.fenced == (1,)

    run_virtually(body())


class TestComingBack:
    """Broker 2 died as the last replica in sync; broker 1 is there but misses records."""

    @staticmethod
    async def leader_after_return(*, directory: str | None = None, boot_id: str, is_clean: bool) -> int:
        async with cluster_of(1, 2) as cluster:
            topic = await cluster.create_topic({0: [2, 1]})
            state = cluster.partition()
            await cluster.any.metadata.alter_isr(
                topic.topic_id,
                0,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                isr=state.isr[:1],
                partition_epoch=state.partition_epoch,
            )
            cluster.crash(2)
            await cluster.until_led_by(NO_LEADER)
            await cluster.start(2, start=2, directory=directory, boot_id=boot_id, is_clean=is_clean)
            await asyncio.sleep(10)
            return cluster.partition().leader

    def test_the_process_was_killed_and_the_page_cache_lived_on(self) -> None:
        assert run_virtually(self.leader_after_return(boot_id="boot", is_clean=False)) == 2

    def test_the_last_leader_is_taken_as_it_is_when_there_is_no_other(self) -> None:
        assert run_virtually(self.leader_after_return(boot_id="another", is_clean=False)) == 2

    def test_an_empty_disk_never_leads(self) -> None:
        leader = self.leader_after_return(directory="new disk", boot_id="another", is_clean=False)
        assert run_virtually(leader) == NO_LEADER


def test_a_broker_that_lost_its_page_cache_does_not_lead_while_another_has_everything() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            # With a minimum of two, who leaves last but one is still good for everything committed.
            await cluster.create_topic({0: [1, 2]}, {"min.insync.replicas": "2"})
            cluster.crash(2)
            await asyncio.sleep(30)
            assert (cluster.partition().isr, cluster.partition().eligible) == ((1,), (2,))
            cluster.crash(1)
            await cluster.until_led_by(NO_LEADER)
            await cluster.start(1, start=2, boot_id="after the power cut")
            await asyncio.sleep(30)
            assert cluster.partition().leader == NO_LEADER
            await cluster.start(2, start=2)
            await cluster.until_led_by(2)

    run_virtually(body())


@pytest.mark.parametrize("is_intact_first", [True, False])
@pytest.mark.parametrize("is_lease_over", [True, False])
def test_an_intact_broker_leads_where_one_in_sync_is_enough(
    is_intact_first: bool, is_lease_over: bool
) -> None:
    """Both in sync go at once, one killed and one without power, and are missed one after the other or not
    before they are back: who lost nothing must not make way for who did."""

    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            await cluster.create_topic({0: [1, 2]}, {"min.insync.replicas": "1"})
            cluster.crash(1)
            cluster.crash(2)
            if is_lease_over:
                await cluster.until_led_by(NO_LEADER)
            for node_id in (1, 2) if is_intact_first else (2, 1):
                await cluster.start(
                    node_id, start=2, boot_id="boot" if node_id == 1 else "after the power cut"
                )
                await asyncio.sleep(5)
                # While its lease lives, broker 2 may still be said to lead; back, it must not.
                assert node_id == 1 or cluster.partition().leader != 2
            await cluster.until_led_by(1)
            assert cluster.partition().isr == (1,)

    run_virtually(body())


def test_a_restarted_broker_does_not_wait_for_the_lease_of_its_last_run() -> None:
    async def body() -> None:
        async with cluster_of(1) as cluster:
            cluster.crash(1)
            started_at_s = asyncio.get_running_loop().time()
            again = await cluster.start(1, start=2)
            assert asyncio.get_running_loop().time() - started_at_s < 1.0
            assert again.metadata.image.brokers[again.node_id].incarnation == "1.2"

    run_virtually(body())


class TestStoreAwayDuringTheStart:
    """After it was there in the beginning. It is given the same time to come back as it had to come up."""

    @staticmethod
    async def start(away_s: float) -> tuple[StoreUnavailable | None, float]:
        """What came of it, and after which time."""
        async with cluster_of(1, 2) as cluster:
            await cluster.create_topic({0: [1, 2]})
            cluster.crash(1)
            again = LocalBroker(cluster.store, 1, start=2)
            await again.metadata.start(cluster.tasks)
            cluster.store.set_available(False)
            loop = asyncio.get_running_loop()
            loop.call_later(away_s, cluster.store.set_available, True)
            started_at_s = loop.time()
            failure = None
            try:
                await again.session.prepare()
                assert again.metadata.image.topics["t"].partitions[0].leader != 1
            except StoreUnavailable as error:
                failure = error
            waited_s = loop.time() - started_at_s
            again.crash()
            await asyncio.sleep(2 * away_s)
            return failure, waited_s

    def test_the_start_goes_on_when_it_is_back(self) -> None:
        failure, waited_s = run_virtually(self.start(5.0))
        assert failure is None
        # Whoever watches a store that is away looks again after five seconds at most.
        assert 5.0 <= waited_s <= 11.0

    def test_who_started_the_broker_is_told_when_it_stays_away(self) -> None:
        failure, waited_s = run_virtually(self.start(2 * OPEN_MS_MAX / 1000))
        assert failure is not None
        assert OPEN_MS_MAX / 1000 <= waited_s <= OPEN_MS_MAX / 1000 + 2.0


def test_a_node_id_that_another_broker_holds_is_refused() -> None:
    async def body() -> None:
        async with cluster_of(1) as cluster:
            other = LocalBroker(cluster.store, 1, start=2, directory="another disk")
            await other.metadata.start(cluster.tasks)
            started_at_s = asyncio.get_running_loop().time()
            with pytest.raises(NodeIdInUse):
                await other.session.prepare()
            waited_s = asyncio.get_running_loop().time() - started_at_s
            assert waited_s >= (TIMEOUT_MS + TAKEOVER_GRACE_MS) / 1000
            other.crash()
            assert not cluster.any.session.is_fenced

    run_virtually(body())


@pytest.mark.parametrize("error", [NodeIdInUse(1, "another"), ValueError("a bug")])
def test_a_broker_that_loses_its_place_for_good_or_cannot_keep_it_ends(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lease it serves nobody, and nobody would see why."""
    tries = 0

    async def fail(session: BrokerSession) -> None:
        nonlocal tries
        tries += 1
        raise error

    async def body() -> None:
        async with cluster_of(1) as cluster:
            monkeypatch.setattr(BrokerSession, "_run", fail)
            owner = Background(random.Random(1))
            await cluster.any.session.enter(owner)
            await asyncio.sleep(600)
            assert owner.fatal is error
            assert tries == (1 if isinstance(error, NodeIdInUse) else ATTEMPTS_MAX)
            await owner.end()

    run_virtually(body())


def test_a_new_disk_is_let_in_when_the_lease_of_the_last_run_has_ended() -> None:
    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            cluster.crash(1)
            again = await cluster.start(1, start=2, directory="new disk")
            assert again.metadata.image.brokers[again.node_id].incarnation == "1.2"

    run_virtually(body())
