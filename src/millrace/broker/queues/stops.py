"""What the log says when a share partition stops to deliver, and when it goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millrace.queues.share_partition.changes import Stop
from millrace.queues.share_partition.partition import ARCHIVING_MAX

if TYPE_CHECKING:
    from millrace.queues.share_partition.partition import SharePartition

log = logging.getLogger(__name__)


def stop_to_tell(rules: SharePartition, told: Stop | None, now_ms: int) -> Stop | None:
    """Why nothing is delivered now, given what was told last: around the limit of dead letters that wait,
    delivery stops and goes on many times a second, so it has to get well below before that is told."""
    stop = rules.stop(now_ms)
    if stop is None and told is Stop.DEAD_LETTERS and rules.archiving_count > ARCHIVING_MAX // 2:
        return told
    return stop


def tell_of_stop(group_id: str, partition: object, rules: SharePartition, stop: Stop | None) -> None:
    """Say that delivery stopped for this reason, or goes on."""
    match stop:
        case None:
            log.info("group %s, %s: delivery goes on", group_id, partition)
        case Stop.PAUSED:
            log.info("group %s, %s: delivery is paused by share.delivery.pause", group_id, partition)
        case Stop.BREAKER:
            window_ms = rules.settings.breaker_window_ms
            text = "group %s, %s: more than share.dlq.breaker.ratio is given up, delivery stops for %d ms"
            log.warning(text, group_id, partition, window_ms)
        case Stop.DEAD_LETTERS:
            text = "group %s, %s: delivery stops until some of %d dead letters are written"
            log.warning(text, group_id, partition, rules.archiving_count)
