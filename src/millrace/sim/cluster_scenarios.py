"""Scenarios of three brokers, with each partition on all of them. Two brokers must have what is acknowledged,
or one where the plan says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millrace.sim import (
    admin_steps,
    bit_flips,
    cluster_faults,
    directory_faults,
    faults,
    growth,
    parcels,
    permissions,
    share_groups,
    shortages,
)
from millrace.sim.clients.producer import Workload
from millrace.sim.mixtures import BY_PEOPLE, OF_ONE_MACHINE, OF_THE_CLUSTER
from millrace.sim.older_broker import OlderBroker
from millrace.sim.playing import FLUSH_EVERY_MESSAGE, Named, again_and_again, no_fault, side_by_side
from millrace.sim.run import Plan
from millrace.sim.seasons import SEASONS_SCENARIO

_SAFE: Final = {"min.insync.replicas": "2"}
_FASTER: Final = {"replica.lag.time.max.ms": "5000"}
THREE: Final = Plan(
    nodes=3, replicas=3, topic_configs=_SAFE, settings=_FASTER, workload=Workload(pause_s=1.0)
)
THREE_FLUSHING: Final = Plan(
    nodes=3,
    replicas=3,
    topic_configs=_SAFE,
    settings={**_FASTER, **FLUSH_EVERY_MESSAGE},
    workload=Workload(pause_s=1.0),
)
ONE_IS_ENOUGH: Final = Plan(
    nodes=3,
    replicas=3,
    settings={**_FASTER, "min.insync.replicas": "1", "transaction.state.log.min.isr": "1"},
    workload=Workload(pause_s=1.0),
)
"""A single replica in sync may acknowledge: for the topics of clients, committed offsets and transactions."""
FOUR: Final = Plan(nodes=4, replicas=3, topic_configs=_SAFE, settings=_FASTER, workload=Workload(pause_s=1.0))
"""With a fourth broker replicas have somewhere to move to."""
THROTTLED: Final = replace(
    FOUR,
    topic_configs={
        **_SAFE,
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "*",
    },
    settings={
        **_FASTER,
        "leader.replication.throttled.rate": "3000",
        "follower.replication.throttled.rate": "3000",
    },
)
"""A replica that is behind may have a few batches each second, and less than one if they are large."""
SCRUBBING: Final = replace(
    THREE,
    keeps_records=True,
    settings={**_FASTER, **bit_flips.SCRUBBING},
    topic_configs={**_SAFE, **bit_flips.SMALL_SEGMENTS},
)
UNREAD: Final = replace(
    THREE,
    with_readers=False,
    with_groups=False,
    workload=Workload(pause_s=0.3),
    settings={**_FASTER, "log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "1000"},
    topic_configs={
        **_SAFE,
        "retention.bytes": "40000",
        "internal.segment.bytes": "8192",
        "file.delete.delay.ms": "1000",
    },
)
"""Nobody asks what is stable, and retention keeps the stored amount the same."""
UPGRADED: Final = replace(THREE, first_broker=OlderBroker)
TWO_DIRECTORIES: Final = Plan(
    nodes=3,
    replicas=3,
    topic_configs=_SAFE,
    settings={**_FASTER, **directory_faults.SETTINGS},
    workload=Workload(pause_s=1.0),
)
LARGER_BATCHES: Final = replace(THREE, workload=Workload(pause_s=1.0, values_max=10))
RESTRICTED: Final = replace(FOUR, settings={**_FASTER, **permissions.SETTINGS})
SHARING: Final = replace(THREE, settings={**_FASTER, **share_groups.SETTINGS}, with_groups=False)
DELAYING: Final = replace(THREE, settings={**_FASTER, **parcels.SETTINGS}, with_groups=False)
CALM: Final = Plan(nodes=3, replicas=3, topic_configs=_SAFE, settings=_FASTER, workload=Workload(pause_s=3.0))

CLUSTER_SCENARIOS: Final[Sequence[Named]] = (
    Named(
        name="C-F1-F2-quick-failovers",
        play=again_and_again(cluster_faults.quick_failovers, every_s=(5.0, 20.0)),
        plan=THREE,
        about="leaders go one after the other",
    ),
    Named(
        name="C-F1-F5-slow-replication",
        play=again_and_again(cluster_faults.failover_with_slow_replication, every_s=(1.0, 6.0)),
        plan=THREE,
        about="leaders go while the others are behind",
    ),
    Named(
        name="C-F3-F24-kills",
        play=again_and_again(faults.kill, faults.cut_off_client, faults.reset_connections),
        plan=THREE,
        about="clients with stale leaders and epochs",
    ),
    Named(
        name="C-F4-last-one",
        play=again_and_again(cluster_faults.last_one_loses_power, every_s=(10.0, 30.0)),
        plan=THREE,
        about="the in-sync set shrinks to one, which loses power",
    ),
    Named(
        name="C-F4-last-two",
        play=again_and_again(cluster_faults.last_two_go_together, every_s=(2.0, 10.0)),
        plan=ONE_IS_ENOUGH,
        about="with one in sync enough, the last two go: one is intact, one loses power",
    ),
    Named(
        name="C-F5-power-loss",
        play=again_and_again(faults.power_loss, faults.power_loss_of_a_slow_disk, every_s=(10.0, 40.0)),
        plan=THREE,
        about="one broker forgets what it did not flush",
    ),
    Named(
        name="C-F6-power-loss-everywhere",
        play=again_and_again(faults.power_loss_everywhere, every_s=(5.0, 30.0)),
        plan=THREE_FLUSHING,
        about="all brokers at once",
    ),
    Named(
        name="C-F7-flipped-bit",
        play=again_and_again(cluster_faults.flipped_bit_on_one),
        plan=THREE,
        about="a bit turns on one of three disks",
    ),
    Named(
        name="C-F7-bits-anywhere",
        play=again_and_again(bit_flips.bits_on_one),
        plan=SCRUBBING,
        about="bits turn in any file of one of three, which leads after that",
    ),
    Named(
        name="C-F7-marker",
        play=again_and_again(bit_flips.bit_in_a_marker),
        plan=SCRUBBING,
        about="the ends of transactions are damaged on one of three and mended, and it leads",
    ),
    Named(
        name="C-F10-directories",
        play=again_and_again(
            directory_faults.failing_directory,
            directory_faults.move_logs,
            directory_faults.crash_in_a_move,
            every_s=(1.0, 10.0),
        ),
        plan=TWO_DIRECTORIES,
        about="one of two data directories fails, and logs move between them",
    ),
    Named(
        name="C-F10-refused-calls",
        play=again_and_again(shortages.no_descriptors, shortages.no_room_for_any_call, every_s=(0.5, 5.0)),
        plan=THREE,
        about="EMFILE and ENOSPC at any call to one broker's disk",
    ),
    Named(
        name="C-unread-transactions",
        play=growth.transactions_that_nobody_reads,
        plan=UNREAD,
        about="transactions that nobody reads, while no structure of a broker may grow with them",
    ),
    Named(
        name="C-F11-pause",
        play=again_and_again(faults.pause, faults.pause_and_kill),
        plan=THREE,
        about="a leader stands still past its lease",
    ),
    Named(
        name="C-F11-lease",
        play=again_and_again(cluster_faults.cut_off_from_the_cluster, faults.store_cut_off),
        plan=THREE,
        about="a leader without the others and the store, which clients still reach",
    ),
    Named(
        name="C-F12-F13-store",
        play=again_and_again(faults.store_outage, faults.store_cut_off, faults.store_compaction, faults.kill),
        plan=THREE,
        about="the store away, cut off, compacted",
    ),
    Named(
        name="C-partitions",
        play=again_and_again(cluster_faults.cut_brokers, cluster_faults.cut_off_one),
        plan=THREE,
        about="brokers cut off from each other, in one direction or both",
    ),
    Named(name="C-F25-no-fault", play=no_fault, plan=THREE, about="nothing happens"),
    Named(
        name="C-F26-share-groups",
        play=share_groups.with_share_groups(
            again_and_again(
                faults.kill,
                faults.restart,
                faults.pause,
                faults.reset_connections,
                faults.cut_off_client,
                cluster_faults.cut_brokers,
                cluster_faults.cut_off_one,
                cluster_faults.cut_off_from_the_cluster,
                admin_steps.put_leaders_back,
                every_s=(1.0, 10.0),
            )
        ),
        plan=SHARING,
        about="leaders of records and of their state are killed, paused and cut off under share groups",
    ),
    Named(
        name="C-F27-dead-letters",
        play=share_groups.with_dead_letters(
            again_and_again(
                share_groups.dead_letters_refused,
                faults.full_disk,
                faults.kill,
                faults.pause,
                cluster_faults.cut_brokers,
                admin_steps.put_leaders_back,
                every_s=(1.0, 8.0),
            )
        ),
        plan=SHARING,
        about="dead letters are refused, without room, or led by a broker that is away",
    ),
    Named(
        name="C-delayed-messages",
        play=parcels.with_delayed_messages(
            again_and_again(
                faults.kill,
                faults.restart,
                faults.pause,
                cluster_faults.cut_brokers,
                cluster_faults.cut_off_one,
                admin_steps.put_leaders_back,
                every_s=(1.0, 10.0),
            )
        ),
        plan=DELAYING,
        about="delayed messages come once and not too early, whoever leads",
    ),
    Named(
        name="C-F29-topics-come-and-go",
        play=again_and_again(admin_steps.fleeting_topic, admin_steps.growing_topic, every_s=(0.0, 2.0)),
        plan=THREE,
        about="topics deleted and created again, and topics that grow",
    ),
    Named(
        name="C-F31-rolling-upgrade",
        play=again_and_again(cluster_faults.roll_forward_and_back),
        plan=UPGRADED,
        about="brokers of an older release are replaced one by one, and again the other way",
    ),
    Named(
        name="C-F32-slow",
        play=again_and_again(faults.slow_disk, faults.slow_link),
        plan=THREE,
        about="slow disk, slow links",
    ),
    Named(
        name="C-F33-empty-disk",
        play=again_and_again(cluster_faults.empty_disk),
        plan=THREE,
        about="a broker comes back with nothing",
    ),
    Named(
        name="C-delete-records",
        play=again_and_again(
            cluster_faults.records_go_while_one_is_away, admin_steps.delete_records, every_s=(1.0, 6.0)
        ),
        plan=LARGER_BATCHES,
        about="records are deleted up to the middle of batches, while brokers are away or lose their disks",
    ),
    Named(
        name="C-refused-connections",
        play=again_and_again(cluster_faults.refuse_connections, every_s=(1.0, 6.0)),
        plan=THREE,
        about="something refuses connections in the place of a broker that runs",
    ),
    Named(
        name="C-rolling-restart",
        play=again_and_again(cluster_faults.rolling_restart),
        plan=THREE,
        about="all brokers, one after the other, in order",
    ),
    Named(
        name="C-reassign",
        play=side_by_side(
            admin_steps.move_replicas,
            admin_steps.move_replicas,
            admin_steps.put_leaders_back,
            faults.kill,
            faults.restart,
            faults.pause,
            cluster_faults.cut_brokers,
            every_s=(0.5, 5.0),
        ),
        plan=FOUR,
        about="replicas move between four brokers, which are killed, paused and cut off",
    ),
    Named(
        name="C-reassign-throttled",
        play=side_by_side(
            admin_steps.move_replicas,
            admin_steps.put_leaders_back,
            faults.kill,
            faults.restart,
            cluster_faults.cut_brokers,
            every_s=(0.5, 5.0),
        ),
        plan=THROTTLED,
        about="replicas move and catch up at a rate, and all of them arrive",
    ),
    Named(
        name="C-admin",
        play=side_by_side(
            admin_steps.fleeting_topic,
            admin_steps.growing_topic,
            admin_steps.delete_records,
            admin_steps.move_replicas,
            admin_steps.put_leaders_back,
            admin_steps.change_settings,
            faults.kill,
            faults.restart,
            faults.store_cut_off,
            every_s=(0.5, 5.0),
        ),
        plan=FOUR,
        about="everything that people change while a cluster is used",
    ),
    Named(
        name="C-permissions",
        play=permissions.with_permissions(
            faults.kill, faults.restart, admin_steps.put_leaders_back, admin_steps.move_replicas
        ),
        plan=RESTRICTED,
        about="permissions come and go while brokers do, which need theirs to replicate",
    ),
    Named(
        name="C-random",
        play=side_by_side(
            faults.kill,
            faults.restart,
            *OF_ONE_MACHINE,
            faults.clock_jump,
            *OF_THE_CLUSTER,
            *BY_PEOPLE,
            lines=1,
        ),
        plan=CALM,
        about="everything that three copies must bear, one at a time",
    ),
    Named(
        name="C-one-in-sync",
        play=side_by_side(
            faults.kill,
            faults.restart,
            faults.pause,
            faults.pause_and_kill,
            faults.slow_disk,
            faults.store_cut_off,
            cluster_faults.cut_brokers,
            cluster_faults.cut_off_one,
            admin_steps.move_replicas,
            admin_steps.put_leaders_back,
            every_s=(0.5, 5.0),
        ),
        plan=replace(ONE_IS_ENOUGH, nodes=4),
        about="one in sync is enough, and whatever happens no page cache is lost",
    ),
    SEASONS_SCENARIO,
)
