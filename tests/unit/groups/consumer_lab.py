"""One partition's groups without a broker: commands in, answers out, a log to replay, time as set."""

from __future__ import annotations

from dataclasses import replace

from millrace.coordinator.decision import CancelTimer, Decision, Record, SetTimer
from millrace.core.errors import MillraceError
from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.core.persistent_map import PersistentMap
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat, ConsumerSettings
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.consumer.rules import GroupsOfConsumers
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.records import GroupRecordCodec
from millrace.metadata.image import EMPTY, BrokerState, Image, PartitionState, TopicState
from tests.unit.groups.applied import decided

GROUP = "g"


class Lab:
    """Every record goes through its bytes before it is applied, as it does after a restart."""

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        self.settings = settings or ConsumerSettings(assignment_interval_ms=0)
        self.classic_settings = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_min_ms=1)
        self.group_configs: dict[str, dict[str, str]] = {}
        self.image: Image = EMPTY
        self.patterns_loaded = 0
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[object, tuple[int, object]] = {}
        self.answers: dict[int, object] = {}
        self.codec = GroupRecordCodec()
        self.machine = self.new_machine()
        self.rules.resume(ConsumerGroup(GROUP), self.now_ms)
        self._carry_out(self.machine.resume(self.now_ms))
        self.token = 0
        self._topic_number = 0

    def new_machine(self) -> GroupMachine:
        return GroupMachine(self.classic_settings, self.consumer_rules)

    def consumer_rules(self, machine: GroupMachine) -> GroupsOfConsumers:
        return GroupsOfConsumers(
            machine,
            ConsumerTopics(lambda: self.image),
            lambda: self.settings,
            lambda group_id: self.group_configs.get(group_id, {}),
            self._count_loaded_patterns,
        )

    def _count_loaded_patterns(self) -> None:
        self.patterns_loaded += 1

    @property
    def rules(self) -> GroupsOfConsumers:
        assert isinstance(self.machine.consumer_rules, GroupsOfConsumers)
        return self.machine.consumer_rules

    @property
    def group(self) -> ConsumerGroup:
        group = self.machine.groups[GROUP]
        assert isinstance(group, ConsumerGroup), group
        return group

    # Topics.

    def set_topic(self, name: str, partitions: int, *, is_new: bool = False, racks: bool = False) -> TopicId:
        known = self.image.topics.get(name)
        if known is None or is_new:
            self._topic_number += 1
            topic_id = TopicId(self._topic_number.to_bytes(16, "big"))
        else:
            topic_id = known.topic_id
        states = tuple(
            PartitionState(NodeId(p % 3), Epoch(0), (NodeId(p % 3),), (NodeId(p % 3),), 0)
            for p in range(partitions)
        )
        topic = TopicState(
            name=name, topic_id=topic_id, partitions=states, configs={}, internal=False, mod_revision=0
        )
        removals = [known.topic_id] if known is not None and known.topic_id != topic_id else []
        self._change(
            topics=self.image.topics.updated({name: topic}),
            topics_by_id=self.image.topics_by_id.updated({topic_id: topic}, removals),
        )
        return topic_id

    def delete_topic(self, name: str) -> None:
        topic = self.image.topics[name]
        self._change(
            topics=self.image.topics.updated({}, [name]),
            topics_by_id=self.image.topics_by_id.updated({}, [topic.topic_id]),
        )

    def set_racks(self, racks: dict[int, str]) -> None:
        brokers = {
            NodeId(node): BrokerState(node_id=NodeId(node), incarnation="", rack=rack, endpoints=())
            for node, rack in racks.items()
        }
        self._change(brokers=brokers)

    def _change(
        self,
        *,
        topics: PersistentMap[str, TopicState] | None = None,
        topics_by_id: PersistentMap[TopicId, TopicState] | None = None,
        brokers: dict[NodeId, BrokerState] | None = None,
    ) -> None:
        revision = self.image.revision + 1
        self.image = replace(
            self.image,
            revision=revision,
            topology_revision=revision,
            topics=self.image.topics if topics is None else topics,
            topics_by_id=self.image.topics_by_id if topics_by_id is None else topics_by_id,
            brokers=self.image.brokers if brokers is None else brokers,
        )

    # Commands.

    def submit(self, command: object) -> object | None:
        """The answer, an error as a value, or None if the request waits."""
        self.token += 1
        decision = decided(self.machine, command, self.now_ms, self.token)
        self._carry_out(decision)
        return decision.error if decision.error is not None else decision.response

    def ok(self, beat: ConsumerHeartbeat) -> Beat:
        answer = self.submit(beat)
        assert isinstance(answer, Beat), answer
        return answer

    def refused(self, command: object) -> type[MillraceError]:
        answer = self.submit(command)
        assert isinstance(answer, MillraceError), answer
        return type(answer)

    def _carry_out(self, decision: Decision[object]) -> None:
        for record in decision.records:
            encoded = self.codec.encode(record)
            self.log.append(encoded)
            decoded = self.codec.decode(*encoded)
            assert decoded is not None
            self.machine.apply(Record(*decoded))
        for unstored in decision.unstored:
            self.machine.apply(unstored)
        for timer in decision.timers:
            match timer:
                case SetTimer(name, delay_ms, command):
                    self.timers[name] = (self.now_ms + delay_ms, command)
                case CancelTimer(name):
                    self.timers.pop(name, None)
        for token, outcome in decision.replies:
            self.answers[token] = outcome

    def pass_time(self, ms: int) -> None:
        """Timers fire on the way."""
        end = self.now_ms + ms
        while True:
            due = [(at, str(name), name) for name, (at, _) in self.timers.items() if at <= end]
            if not due:
                break
            at, _, name = min(due, key=lambda entry: entry[:2])
            self.now_ms = max(self.now_ms, at)
            _, command = self.timers.pop(name)
            self._carry_out(decided(self.machine, command, self.now_ms, 0))
        self.now_ms = end

    # Replay.

    def replayed(self, *, is_compacted: bool = False) -> GroupMachine:
        machine = self.new_machine()
        log = self.log
        if is_compacted:
            last = {key: number for number, (key, _) in enumerate(log)}
            log = [entry for number, entry in enumerate(log) if last[entry[0]] == number]
        for entry in log:
            decoded = self.codec.decode(*entry)
            assert decoded is not None
            machine.apply(decoded)
        return machine

    def restart(self) -> None:
        self.machine = self.replayed()
        self.timers.clear()
        self._carry_out(self.machine.resume(self.now_ms))


def stored_state(group: ConsumerGroup) -> dict[str, object]:
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "assignment": (group.assignment_epoch, group.assigned_at_ms),
        "members": group.members,
        "static": group.static_members,
        "target": group.target,
        "owners": group.owners,
        "patterns": group.patterns,
    }
