"""Messages that are to be seen later: each comes once, and none before its time, whatever befalls brokers."""

from __future__ import annotations

from typing import Final

from millrace.core.override import override
from millrace.queues.delayed.model import DELAY_MS, DELIVER_AT
from millrace.sim.clients.consumer import Consumer
from millrace.sim.clients.producer import Batch, IdempotentProducer
from millrace.sim.history import Acked, DelayedUntil, Polled
from millrace.sim.run import END_S, PARTITIONS, Run, Scenario
from millrace.wire.records import Header, Record, build_batch

PARCELS: Final = "parcels"
SETTINGS: Final = {"delayed.messages.topic.num.partitions": "2"}
TOPIC_CONFIGS: Final = {"delayed.delivery.enable": "true"}
AT_ONCE_CHANCE: Final = 0.2
DELAYS_MS: Final = (0, 15_000)


class DelayingProducer(IdempotentProducer):
    """Most of what it sends is to be seen later."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._made_ms: dict[str, tuple[int, int]] = {}
        """When a value was made, and how much later it is to be seen."""

    @override
    def _encode(self, batch: Batch) -> bytes:
        """The same bytes each time: a batch that is sent again says the same."""
        records = []
        for at, value in enumerate(batch.values):
            made_ms, delay_ms = self._delay_of(value)
            records.append(Record(at, made_ms, None, value.encode(), self._headers(made_ms, delay_ms)))
        return build_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.sequence,
        )

    def _delay_of(self, value: str) -> tuple[int, int]:
        client = self.client
        found = self._made_ms.get(value)
        if found is None:
            is_at_once = client.chance.random() < AT_ONCE_CHANCE
            delay_ms = -1 if is_at_once else client.chance.randint(*DELAYS_MS)
            found = self._made_ms[value] = (client.wall_ms(), delay_ms)
            if delay_ms >= 0:
                client.note(DelayedUntil(at=client.now(), value=value, due_ms=found[0] + delay_ms))
        return found

    def _headers(self, made_ms: int, delay_ms: int) -> tuple[Header, ...]:
        if delay_ms < 0:
            return ()
        if delay_ms % 2:
            return ((DELAY_MS, str(delay_ms).encode()),)
        return ((DELIVER_AT, str(made_ms + delay_ms).encode()),)


def with_delayed_messages(play: Scenario) -> Scenario:
    """Plays a scenario beside producers of delayed messages and their reader."""

    async def both(run: Run) -> None:
        await run.create_topic(PARCELS, TOPIC_CONFIGS)
        for number in (1, 2):
            client, process = run.cluster.client(f"sender-{number}")
            producer = DelayingProducer(client, PARCELS, PARTITIONS, run.plan.workload)
            run.producers.append(producer)
            run.start(producer, process)
        client, process = run.cluster.client(f"consumer-of-{PARCELS}")
        reader = Consumer(client, PARCELS, PARTITIONS, committed_only=False, pause_s=0.2)
        run.consumers.append(reader)
        run.start(reader, process)

        async def until_all_came() -> None:
            await run.cluster.until(
                lambda: not missing(run), deadline_s=END_S, what="the delivery of every delayed message"
            )

        run.endings.append(until_all_came)
        await play(run)

    return both


def missing(run: Run) -> list[str]:
    """What was acknowledged and has not been seen."""
    history = run.cluster.history
    seen = {
        value: None for polled in history.of(Polled) if polled.topic == PARCELS for _, value in polled.records
    }
    return [acked.value for acked in history.of(Acked) if acked.topic == PARCELS and acked.value not in seen]
