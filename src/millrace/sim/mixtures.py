"""Faults that every cluster of three must bear at any time, for scenarios that mix them. A new fault belongs
in here, so that long runs meet it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.sim import admin_steps, cluster_faults, faults
from millrace.sim.faults import Fault

OF_ONE_MACHINE: Final[Sequence[Fault]] = (
    faults.pause,
    faults.pause_and_kill,
    faults.cut_off_client,
    faults.reset_connections,
    faults.slow_link,
    faults.slow_disk,
    faults.full_disk,
    faults.failing_disk,
)
OF_THE_CLUSTER: Final[Sequence[Fault]] = (
    faults.store_outage,
    faults.store_cut_off,
    faults.store_compaction,
    cluster_faults.cut_brokers,
    cluster_faults.cut_off_one,
    cluster_faults.quick_failovers,
    cluster_faults.failover_with_slow_replication,
    cluster_faults.refuse_connections,
)
BY_PEOPLE: Final[Sequence[Fault]] = (
    admin_steps.delete_records,
    admin_steps.move_replicas,
    admin_steps.put_leaders_back,
    admin_steps.change_settings,
)
