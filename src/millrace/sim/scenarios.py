"""The scenarios, named after the codes of the faults page. Each says what it needs and what it does; all are
held against the same checkers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from millrace.sim import (
    admin_steps,
    bit_flips,
    directory_faults,
    faults,
    parcels,
    permissions,
    quotas,
    share_groups,
    shortages,
)
from millrace.sim.clients.producer import Workload
from millrace.sim.cluster_scenarios import CLUSTER_SCENARIOS
from millrace.sim.playing import FLUSH_EVERY_MESSAGE, Named, again_and_again, no_fault, side_by_side
from millrace.sim.run import Plan, Run

SECONDS: Final = 60.0
"""How long faults go on if nobody says otherwise."""


async def idle_producers(run: Run) -> None:
    """Producers fall silent for longer than the broker remembers them, then go on (F20)."""
    while run.time_left() > 0:
        await run.sleep(5.0, 15.0)
        for producer in run.producers:
            producer.rest(run.chance.uniform(100.0, 200.0))
        await run.sleep(10.0, 250.0)
        if run.chance.random() < 0.3:
            await faults.kill(run)


async def store_goes_back(run: Run) -> None:
    """The store is set back to an earlier state: brokers notice and stop, and serve again when it is right
    (F14)."""
    cluster = run.cluster
    while run.time_left() > 0:
        before = await cluster.store.load()
        await run.create_topic(f"later-{before.revision}")
        await run.sleep(1.0, 5.0)
        now = await cluster.store.load()
        cluster.note(f"the store goes back from revision {now.revision} to {before.revision}")
        cluster.store.restore(before)
        await cluster.until(
            lambda: not any(node.is_running for node in run.nodes),
            deadline_s=60.0,
            what="the stop of brokers whose store went back",
        )
        await run.sleep(1.0, 5.0)
        cluster.store.restore(now)
        for node in run.nodes:
            node.start()
        await cluster.until_ready()
        await run.sleep(1.0, 10.0)


async def topics_come_and_go_on_a_bad_disk(run: Run) -> None:
    """Topics are deleted and created again while renames fail, and the broker stops and starts (F29)."""

    async def fleeting_topic(run: Run) -> None:
        await admin_steps.fleeting_topic(run, restart_chance=0.5)

    await asyncio.gather(
        again_and_again(fleeting_topic, every_s=(0.0, 0.1))(run),
        again_and_again(faults.failing_renames, every_s=(0.2, 2.0))(run),
    )


SINGLE: Final = Plan()
WITHOUT_TRANSACTIONS: Final = Plan(with_transactions=False)
SCRUBBING: Final = Plan(
    with_transactions=False,
    keeps_records=True,
    settings=bit_flips.SCRUBBING,
    topic_configs=bit_flips.SMALL_SEGMENTS,
)
RESTRICTED: Final = Plan(settings=permissions.SETTINGS)
FLUSHING: Final = Plan(settings=FLUSH_EVERY_MESSAGE)
ROLLING: Final = Plan(
    settings=FLUSH_EVERY_MESSAGE,
    topic_configs={"internal.segment.bytes": "1024", "index.interval.bytes": "64"},
)
"""Small segments make new files all the time, each with a name that has to last."""
TWO_DIRECTORIES: Final = Plan(settings={**FLUSH_EVERY_MESSAGE, **directory_faults.SETTINGS})
SHARING: Final = Plan(settings={**FLUSH_EVERY_MESSAGE, **share_groups.SETTINGS}, with_groups=False)
DELAYING: Final = Plan(settings={**FLUSH_EVERY_MESSAGE, **parcels.SETTINGS}, with_groups=False)
FEW_EPOCHS: Final = Plan(epochs_max=6)
CALM: Final = Plan(settings=FLUSH_EVERY_MESSAGE, workload=Workload(pause_s=2.0))
"""Less load, for long runs."""
EXPIRING: Final = Plan(
    settings={
        "producer.id.expiration.ms": "60000",
        "log.retention.check.interval.ms": "5000",
        "log.initial.task.delay.ms": "1000",
    }
)
RETAINING: Final = Plan(
    with_transactions=False,
    settings={"log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "1000"},
    topic_configs={
        "retention.bytes": "40000",
        "internal.segment.bytes": "8192",
        "file.delete.delay.ms": "1000",
    },
)

RESTLESS: Final = Plan(
    settings={
        "log.flush.scheduler.interval.ms": "50",
        "log.flush.offset.checkpoint.interval.ms": "50",
        "replica.high.watermark.checkpoint.interval.ms": "50",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",
    }
)
"""All background work goes on all the time."""

SCENARIOS: Final[Sequence[Named]] = (
    Named(
        name="F5-power-loss",
        play=again_and_again(faults.power_loss, faults.power_loss_of_a_slow_disk),
        plan=FLUSHING,
        about="unflushed data lost",
    ),
    Named(
        name="F6-power-loss-everywhere",
        play=again_and_again(faults.power_loss_everywhere, faults.kill_while_starting),
        plan=FLUSHING,
        about="all nodes at once, and again while they recover",
    ),
    Named(
        name="F7-flipped-bit",
        play=again_and_again(faults.flipped_bit),
        plan=WITHOUT_TRANSACTIONS,
        about="a bit turns on disk",
    ),
    Named(
        name="F7-bits-anywhere",
        play=again_and_again(bit_flips.bits_anywhere),
        plan=SCRUBBING,
        about="bits turn in old and new files, while a broker runs or is down",
    ),
    Named(
        name="F8-F9-damaged-files",
        play=again_and_again(faults.damaged_files),
        plan=SINGLE,
        about="checkpoints, snapshots, epochs, indexes cut, flipped or gone",
    ),
    Named(
        name="F10-disk-errors",
        play=again_and_again(faults.full_disk, faults.failing_disk, faults.read_only_disk),
        plan=FLUSHING,
        about="ENOSPC, EIO, read-only",
    ),
    Named(
        name="F10-refused-calls",
        play=again_and_again(
            shortages.no_descriptors,
            shortages.no_room_for_any_call,
            shortages.power_loss_after_a_shortage,
            every_s=(0.5, 5.0),
        ),
        plan=ROLLING,
        about="EMFILE and ENOSPC at any call to the disk, and a power loss after it",
    ),
    Named(
        name="moving-logs",
        play=again_and_again(
            directory_faults.move_logs, directory_faults.crash_in_a_move, every_s=(0.5, 5.0)
        ),
        plan=TWO_DIRECTORIES,
        about="logs move between two data directories, while the process or the power goes",
    ),
    Named(
        name="permissions",
        play=permissions.with_permissions(faults.kill, faults.restart),
        plan=RESTRICTED,
        about="permissions come and go while clients work",
    ),
    Named(
        name="quotas",
        play=side_by_side(quotas.limit_everybody, quotas.limit_everybody, faults.kill, every_s=(0.2, 4.0)),
        plan=SINGLE,
        about="limits come and go while clients work: who is throttled loses nothing",
    ),
    Named(name="F11-pause", play=again_and_again(faults.pause), plan=SINGLE, about="a broker stands still"),
    Named(
        name="F12-store-outage",
        play=again_and_again(faults.store_outage, faults.store_cut_off, faults.kill),
        plan=SINGLE,
        about="the metadata store away or cut off",
    ),
    Named(
        name="F13-store-compaction",
        play=again_and_again(faults.store_compaction),
        plan=SINGLE,
        about="the store's history forgotten while the watch is down",
    ),
    Named(
        name="F14-store-goes-back",
        play=store_goes_back,
        plan=SINGLE,
        about="the store set back to an earlier revision",
    ),
    Named(
        name="F15-F18-transactions",
        play=again_and_again(faults.kill, faults.cut_off_client, faults.pause, faults.reset_connections),
        plan=SINGLE,
        about="late batches, lost answers, time-outs, successors",
    ),
    Named(
        name="F17-last-epochs",
        play=again_and_again(faults.kill, faults.cut_off_client, faults.pause, faults.reset_connections),
        plan=FEW_EPOCHS,
        about="producers whose epochs are used up while they end, time out or are fenced",
    ),
    Named(
        name="F19-kill",
        play=again_and_again(faults.kill, every_s=(0.5, 5.0)),
        plan=SINGLE,
        about="batches in flight",
    ),
    Named(
        name="F20-idle-producers", play=idle_producers, plan=EXPIRING, about="producers silent past expiry"
    ),
    Named(
        name="F21-F24-groups",
        play=again_and_again(faults.kill, faults.restart, faults.cut_off_client),
        plan=SINGLE,
        about="members come and go while the coordinator is killed",
    ),
    Named(
        name="F22-retention",
        play=again_and_again(faults.kill, faults.clock_jump),
        plan=RETAINING,
        about="old segments go",
    ),
    Named(
        name="F23-pause-and-kill",
        play=again_and_again(faults.pause_and_kill),
        plan=SINGLE,
        about="pause, then kill",
    ),
    Named(name="F25-no-fault", play=no_fault, plan=SINGLE, about="nothing happens"),
    Named(
        name="F26-share-groups",
        play=share_groups.with_share_groups(
            again_and_again(
                faults.kill,
                faults.power_loss,
                faults.restart,
                faults.full_disk,
                faults.failing_disk,
                faults.reset_connections,
                faults.cut_off_client,
                faults.pause,
                shortages.no_descriptors,
                every_s=(1.0, 10.0),
            )
        ),
        plan=SHARING,
        about="members of share groups come, go and hang while their broker fails",
    ),
    Named(
        name="F27-dead-letters",
        play=share_groups.with_dead_letters(
            again_and_again(
                share_groups.dead_letters_refused,
                faults.full_disk,
                faults.slow_disk,
                faults.kill,
                faults.power_loss,
                every_s=(1.0, 8.0),
            )
        ),
        plan=SHARING,
        about="dead letters are refused, slow or without room, and the broker fails",
    ),
    Named(
        name="delayed-messages",
        play=parcels.with_delayed_messages(
            again_and_again(
                faults.kill,
                faults.power_loss,
                faults.restart,
                faults.pause,
                faults.full_disk,
                faults.reset_connections,
                every_s=(1.0, 10.0),
            )
        ),
        plan=DELAYING,
        about="delayed messages come once and not too early, whatever befalls their broker",
    ),
    Named(
        name="F29-topics-come-and-go",
        play=again_and_again(admin_steps.fleeting_topic, every_s=(0.0, 0.1)),
        plan=SINGLE,
        about="delete and create again",
    ),
    Named(
        name="F29-failing-renames",
        play=topics_come_and_go_on_a_bad_disk,
        plan=RETAINING,
        about="delete and create again, while renames fail and the broker is restarted",
    ),
    Named(
        name="many-logs",
        play=again_and_again(admin_steps.crowd_of_logs, faults.slow_disk, faults.kill, every_s=(0.0, 2.0)),
        plan=RESTLESS,
        about="thousands of logs made and deleted while checkpoints, retention and cleaning never rest",
    ),
    Named(
        name="F32-slow",
        play=again_and_again(faults.slow_disk, faults.slow_link),
        plan=FLUSHING,
        about="slow disk, slow links",
    ),
    Named(
        name="clock-jumps",
        play=again_and_again(faults.clock_jump, faults.kill),
        plan=SINGLE,
        about="wall clocks forward and back",
    ),
    Named(
        name="random",
        play=side_by_side(
            faults.kill,
            faults.power_loss,
            faults.power_loss_of_a_slow_disk,
            faults.kill_while_starting,
            faults.restart,
            faults.pause,
            faults.pause_and_kill,
            faults.cut_off_client,
            faults.reset_connections,
            faults.slow_link,
            faults.slow_disk,
            faults.full_disk,
            faults.failing_disk,
            faults.failing_renames,
            faults.read_only_disk,
            faults.clock_jump,
            faults.store_outage,
            faults.store_cut_off,
            faults.store_compaction,
        ),
        plan=CALM,
        about="everything, two at a time",
    ),
)

BY_NAME: Final = {scenario.name: scenario for scenario in (*SCENARIOS, *CLUSTER_SCENARIOS)}
