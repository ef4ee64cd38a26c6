"""A share consumer over one blocking connection, as thin as can be: it is not what is measured."""

from __future__ import annotations

import time
import uuid
from types import TracebackType
from typing import Final, Self

from benchmarks import share_frames as frames
from benchmarks.connection import Connection
from benchmarks.group_frames import find_coordinator

JOIN_S: Final = 60.0
RETRY_S: Final = 0.05
BEAT_S: Final = 5.0
TRANSIENT: Final = ("coordinator_load_in_progress", "coordinator_not_available", "not_coordinator")


def begin_with_all_records(host: str, port: int, group: str) -> None:
    """Let a group that is not there yet begin at the first record of its topics."""
    with Connection(host, port) as connection:
        # Every client asks this first, and the first question makes the broker create the topics for groups.
        connection.request(find_coordinator(group))
        answer = connection.request(frames.group_settings(group, {"share.auto.offset.reset": "earliest"}))
    (changed,) = frames.decoded(frames.INCREMENTAL_ALTER_CONFIGS, answer)["responses"]
    if changed["error_code"] != "none":
        raise frames.Refused(f"the settings of a group: {changed['error_code']} {changed['error_message']}")


class ShareClient:
    """One member of a share group, with one partition of one topic."""

    def __init__(self, host: str, port: int, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.member_id = str(uuid.uuid4())
        self._connection = Connection(host, port, timeout_s=JOIN_S)
        self._epoch = 0
        self._session_epoch = 0
        self._beaten_at = 0.0
        self._fetch: frames.FetchFrame | None = None
        self._acknowledge: frames.AcknowledgeFrame | None = None
        self._limits: dict[str, int] = {}
        self.assigned: list[tuple[uuid.UUID, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._epoch > 0:
            self._connection.request(frames.heartbeat(self.group, self.member_id, -1, None))
        self._connection.__exit__(kind, error, trace)

    def join(self) -> None:
        """Return when a partition was assigned."""
        deadline = time.monotonic() + JOIN_S
        while not self.assigned:
            if time.monotonic() > deadline:
                raise TimeoutError("no partition was assigned to a share consumer")
            self.beat()
            if not self.assigned:
                time.sleep(RETRY_S)

    def beat(self) -> None:
        """One heartbeat; the first joins."""
        topics = [self.topic] if self._epoch == 0 else None
        frame = frames.heartbeat(self.group, self.member_id, self._epoch, topics)
        answer = frames.decoded(frames.SHARE_GROUP_HEARTBEAT, self._connection.request(frame))
        self._beaten_at = time.monotonic()
        if answer["error_code"] in TRANSIENT:
            return
        if answer["error_code"] != "none":
            raise frames.Refused(f"ShareGroupHeartbeat: {answer['error_code']} {answer['error_message']}")
        self._epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            self.assigned = [
                (each["topic_id"], number)
                for each in answer["assignment"]["topic_partitions"]
                for number in each["partitions"]
            ]

    def open(self, *, max_records: int, mode: int, max_wait_ms: int = 500) -> tuple[int, int] | None:
        """Open a session for the first assigned partition; what was acquired with it."""
        self._limits = {"max_wait_ms": max_wait_ms, "max_records": max_records, "mode": mode}
        topic, partition = self.assigned[0]
        self._fetch = frames.FetchFrame(self.group, self.member_id, self._limits)
        self._acknowledge = frames.AcknowledgeFrame(self.group, self.member_id, topic, partition)
        opening = frames.share_fetch(self.group, self.member_id, 0, self.assigned[:1], self._limits)
        self._session_epoch = 1
        return frames.acquired(self._connection.request(opening))

    def fetch(self) -> tuple[int, int] | None:
        """The offsets that were acquired; None if there was nothing for as long as the client waits."""
        assert self._fetch is not None, "opened first"
        if time.monotonic() - self._beaten_at > BEAT_S:
            self.beat()
        frame = self._fetch.at(self._session_epoch)
        self._session_epoch += 1
        return frames.acquired(self._connection.request(frame))

    def acknowledge(self, first: int, last: int) -> None:
        """Accept a range, and wait until that is confirmed."""
        assert self._acknowledge is not None, "opened first"
        frame = self._acknowledge.at(self._session_epoch, first, last)
        self._session_epoch += 1
        frames.check_acknowledged(self._connection.request(frame))
