"""Days instead of minutes: short times of full traffic under faults, and long quiet times in between.

In the quiet times the cluster does what it does when nobody looks: brokers renew their leases, members keep
their places, segments, offsets, producers and transactional ids expire, logs are compacted, leaders are put
back. And now and then a broker crashes in the night.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from millrace.sim import cluster_faults, faults
from millrace.sim.clients.producer import Workload
from millrace.sim.faults import Fault, pick_running, start_again
from millrace.sim.mixtures import BY_PEOPLE, OF_ONE_MACHINE, OF_THE_CLUSTER
from millrace.sim.playing import Named
from millrace.sim.run import Plan, Run

BUSY_S: Final = (10.0, 40.0)
NIGHTS_S: Final = ((300.0, 1_800.0), (3_600.0, 10_800.0), (10_800.0, 36_000.0), (129_600.0, 216_000.0))
"""A break, an afternoon, a night, a weekend."""
NIGHT_WEIGHTS: Final = (2, 4, 3, 1)
WIND_DOWN_S: Final = 30.0
"""How long clients get to end what they are at."""
LEAVE_CHANCES: Final = (0.0, 0.3, 1.0)
BUSY_FAULT_CHANCE: Final = 0.8
NIGHT_FAULT_CHANCE: Final = 0.4
CLOCK_STEP_MS_MAX: Final = 120_000
HOUR_MS: Final = 3_600_000


async def days(run: Run) -> None:
    while run.time_left() > 0:
        await _busy_time(run)
        await _quiet_time(run)


async def _busy_time(run: Run) -> None:
    chance, hours = run.chance, run.cluster.hours
    run.cluster.note("a busy time begins")
    hours.open()
    length_s = chance.uniform(*BUSY_S)
    trouble = []
    if chance.random() < BUSY_FAULT_CHANCE:
        trouble.append(_after(run, chance.uniform(0.0, length_s), chance.choice(BUSY_FAULTS)))
    await asyncio.gather(run.sleep(length_s), *trouble)
    hours.close(leave_chance=chance.choice(LEAVE_CHANCES))
    await run.sleep(WIND_DOWN_S)


async def _quiet_time(run: Run) -> None:
    chance = run.chance
    (bounds,) = chance.choices(NIGHTS_S, NIGHT_WEIGHTS)
    length_s = chance.uniform(*bounds)
    began = run.cluster.loop.time()
    run.cluster.note(f"{length_s / 60:.0f} quiet minutes")
    trouble = []
    if chance.random() < NIGHT_FAULT_CHANCE:
        trouble.append(_after(run, chance.uniform(0.0, length_s), chance.choice(NIGHT_FAULTS)))
    await asyncio.gather(run.sleep(length_s), *trouble)
    run.quiet_s += run.cluster.loop.time() - began


async def _after(run: Run, seconds: float, fault: Fault) -> None:
    await run.sleep(seconds)
    await fault(run)


async def down_for_long(run: Run) -> None:
    """A broker is down long enough to miss expiry, retention and compaction."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    if run.chance.random() < 0.5:
        node.kill()
    else:
        node.lose_power()
    await start_again(run, node, (300.0, 7_200.0))


async def clock_step(run: Run) -> None:
    """A clock is set right, or wrong by a little."""
    node = run.node
    offset_ms = run.chance.randrange(-CLOCK_STEP_MS_MAX, CLOCK_STEP_MS_MAX)
    run.cluster.note(f"clock of broker {node.node_id} is set {offset_ms} ms off the right time")
    node.clock.offset_ms = offset_ms


BUSY_FAULTS: Final[Sequence[Fault]] = (
    faults.kill,
    faults.power_loss,
    faults.restart,
    *OF_ONE_MACHINE,
    *OF_THE_CLUSTER,
    cluster_faults.rolling_restart,
    *BY_PEOPLE,
    clock_step,
)
NIGHT_FAULTS: Final[Sequence[Fault]] = (
    faults.kill,
    faults.power_loss,
    faults.restart,
    faults.pause,
    faults.store_outage,
    faults.store_cut_off,
    faults.store_compaction,
    cluster_faults.cut_brokers,
    cluster_faults.cut_off_one,
    cluster_faults.rolling_restart,
    down_for_long,
    down_for_long,
    clock_step,
)

_OFFSETS_KEPT_MINUTES: Final = 150


def _pace(*, lease_s: int, lag_s: int) -> dict[str, str]:
    return {
        "broker.session.timeout.ms": str(lease_s * 1000),
        "broker.heartbeat.interval.ms": str(lease_s * 1000 // 3),
        "replica.lag.time.max.ms": str(lag_s * 1000),
        "replica.fetch.wait.max.ms": str(lag_s * 2000 // 3),
    }


PACES: Final = (
    _pace(lease_s=9, lag_s=15),
    _pace(lease_s=18, lag_s=30),
    _pace(lease_s=30, lag_s=60),
    _pace(lease_s=60, lag_s=120),
)
"""How often brokers hear of each other. Longer waits make quiet time cheaper; nothing is left out."""
SEASONS: Final = Plan(
    nodes=3,
    replicas=3,
    topic_configs={"min.insync.replicas": "2", "retention.ms": str(4 * HOUR_MS)},
    settings={
        # Short enough that something expires within a day.
        "offsets.retention.minutes": str(_OFFSETS_KEPT_MINUTES),
        "transactional.id.expiration.ms": str(3 * HOUR_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": str(HOUR_MS // 2),
        "producer.id.expiration.ms": str(2 * HOUR_MS),
        # Long enough that quiet times cost little: nobody asks more often than necessary.
        "replica.high.watermark.checkpoint.interval.ms": "60000",
        "log.cleaner.backoff.ms": "300000",
        "group.consumer.session.timeout.ms": "240000",
        "group.consumer.max.session.timeout.ms": "240000",
    },
    variants=PACES,
    workload=Workload(pause_s=1.0),
    session_timeout_ms=240_000,
    # Clocks may be wrong, and a transaction's offsets are older than its end.
    offsets_expire_ms=_OFFSETS_KEPT_MINUTES * 60_000 - 3 * CLOCK_STEP_MS_MAX,
)

SEASONS_SCENARIO: Final = Named(
    name="C-seasons",
    play=days,
    plan=SEASONS,
    about="days: busy times with faults, long quiet ones with expiry, retention and a crash in the night",
)
