"""The options of the source, by the names of Spark's Kafka source: parsed and checked once, on the driver."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

from millrace.client.errors import InvalidOption
from millrace.client.security import PLAINTEXT, SECURITY_OPTIONS, SecurityOptions, read_security
from millrace.client.servers import READ_COMMITTED, READ_UNCOMMITTED, parse_servers
from millrace.core.ids import TopicPartition
from millrace.pipeline.source.columns import COLUMNS, DEFAULT_COLUMNS
from millrace.pipeline.spark.stores import FROM_ENVIRONMENT, STORE_OPTIONS, StoreAccess, read_store_access

if TYPE_CHECKING:
    from millrace.client.broker_client import BrokerClient

# Names of Kafka's clients; they may carry the prefix `kafka.`, as with Spark's own source.
_KAFKA_OPTIONS: Final = (
    "bootstrap.servers",
    "client.id",
    "group.id",
    "isolation.level",
    "check.crcs",
    "request.timeout.ms",
    "fetch.max.bytes",
    *SECURITY_OPTIONS,
)
_OWN_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "commitGroup",
    "archive",
    *STORE_OPTIONS,
)
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitGroup",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "archive")

_DELAY: Final = re.compile(r"(\d+)\s*(ms|s|m|h)")
_DELAY_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_ISOLATION_LEVELS: Final = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}

FETCH_BYTES_DEFAULT: Final = 4 << 20
TIMEOUT_MS_DEFAULT: Final = 60_000
LATEST_NUMBER: Final = -1
"""The end of a partition, in JSON of offsets."""

PartitionNumbers: TypeAlias = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where reading starts or ends as the options say, before brokers are asked."""

    kind: Literal["earliest", "latest", "offsets", "timestamp", "timestamps"]
    timestamp_ms: int = 0
    numbers: PartitionNumbers = field(default_factory=dict)
    """Offsets or timestamps by topic and partition."""
    option: str = ""
    """The option that it came from, for messages."""

    def number(self, partition: TopicPartition) -> int | None:
        return self.numbers.get(partition.topic, {}).get(partition.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read, checked."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Bound
    ending: Bound
    latest_if_too_young: bool = False
    """Whether a start by timestamp without any record that young means the end, not an error."""
    min_partitions: int = 0
    max_records_per_partition: int = 0
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    isolation: int = READ_COMMITTED
    commit_group: str | None = None
    check_crcs: bool = True
    fetch_bytes: int = FETCH_BYTES_DEFAULT
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    client_id: str = "millrace-spark"
    archive: str | None = None
    store: StoreAccess = FROM_ENVIRONMENT
    """How to reach the store that holds the archive."""
    security: SecurityOptions = PLAINTEXT

    def may_start_at_the_end(self, partition: TopicPartition) -> bool:
        """Whether a partition may start at its end, which is another offset each time somebody asks."""
        by_time = self.starting.kind in ("timestamp", "timestamps")
        return (
            self.starting.kind == "latest"
            or (self.starting.kind == "offsets" and self.starting.number(partition) == LATEST_NUMBER)
            or (by_time and self.latest_if_too_young)
        )

    def client(self) -> BrokerClient:
        # We import this late: a caller that only asks for the columns needs no protocol.
        from millrace.client.broker_client import BrokerClient

        return BrokerClient(
            self.bootstrap, client_id=self.client_id, security=self.security, timeout_ms=self.timeout_ms
        )


def chosen_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns alone: Spark asks for a schema before anything else is known."""
    return _Given(given).columns()


def read_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """All options of a read; raises InvalidOption, which names the wrong one and says what is allowed."""
    options = _Given(given)
    options.refuse_unknown()
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if options.text(name) is not None:
            other = "spark.read" if streaming else "spark.readStream"
            raise InvalidOption(f"{name} is for {other} only")
    if not streaming and options.text("group.id") is not None:
        raise InvalidOption("group.id is for spark.readStream only: a batch read has no progress to commit")
    servers = options.text("bootstrap.servers")
    if servers is None:
        raise InvalidOption("bootstrap.servers is missing: give host:port, several with commas")
    parse_servers(servers)
    topics, pattern, assigned = options.topics()
    starting = options.bound("starting", "latest" if streaming else "earliest")
    if not streaming and starting.kind == "latest":
        raise InvalidOption("startingOffsets=latest: a batch read would be empty; use earliest or offsets")
    ending = Bound(kind="latest") if streaming else options.bound("ending", "latest")
    if ending.kind == "earliest":
        raise InvalidOption("endingOffsets=earliest: a read up to the beginning would be empty")
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return SourceOptions(
        bootstrap=servers,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        latest_if_too_young=strategy == "latest",
        min_partitions=options.number("minPartitions", 0, least=1),
        max_records_per_partition=options.number("maxRecordsPerPartition", 0, least=1),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", 0, least=1),
        max_bytes_per_trigger=options.number("maxBytesPerTrigger", 0, least=1),
        min_offsets_per_trigger=options.number("minOffsetsPerTrigger", 0, least=1),
        max_trigger_delay_ms=options.delay("maxTriggerDelay", 15 * 60_000),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        columns=options.columns(),
        isolation=_ISOLATION_LEVELS[
            options.choice("isolation.level", tuple(_ISOLATION_LEVELS), "read_committed")
        ],
        commit_group=options.group(),
        check_crcs=options.flag("check.crcs", True),
        fetch_bytes=options.number("fetch.max.bytes", FETCH_BYTES_DEFAULT, least=1024, most=1 << 29),
        timeout_ms=options.number("request.timeout.ms", TIMEOUT_MS_DEFAULT, least=100, most=3_600_000),
        client_id=options.text("client.id") or "millrace-spark",
        archive=options.text("archive"),
        store=read_store_access(options.values),
        security=read_security(options.values),
    )


class _Given:
    """Options as they were given, looked up without regard to case or the prefix `kafka.`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.values = {name.lower(): value for name, value in given.items()}

    def refuse_unknown(self) -> None:
        if "path" in self.values:
            raise InvalidOption(
                "load() takes no path here: name topics with subscribe, subscribePattern or assign"
            )
        known = {name.lower(): name for name in (*_OWN_OPTIONS, *_KAFKA_OPTIONS)}
        known |= {f"kafka.{name}": f"kafka.{name}" for name in _KAFKA_OPTIONS}
        for name in self.values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(_OWN_OPTIONS)}"
                raise InvalidOption(f"unknown option {name}: {hint}")

    def text(self, name: str) -> str | None:
        plain, prefixed = self.values.get(name.lower()), self.values.get(f"kafka.{name.lower()}")
        if plain is not None and prefixed is not None and plain != prefixed:
            raise InvalidOption(f"{name} and kafka.{name} are both given and differ")
        value = prefixed if plain is None else plain
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidOption(f"{name}={value}: must be true or false")
        return value.lower() == "true"

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise InvalidOption(f"{name}={value}: must be a whole number") from None
        if not least <= number <= most:
            limit = f"at least {least}" if number < least else f"at most {most}"
            raise InvalidOption(f"{name}={value}: must be {limit}")
        return number

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in allowed:
            raise InvalidOption(f"{name}={value}: must be {' or '.join(allowed)}")
        return value.lower()

    def delay(self, name: str, default_ms: int) -> int:
        value = self.text(name)
        if value is None:
            return default_ms
        match = _DELAY.fullmatch(value)
        if match is None:
            raise InvalidOption(f"{name}={value}: must be a number with ms, s, m or h, such as 15m")
        return int(match[1]) * _DELAY_UNITS_MS[match[2]]

    def group(self) -> str | None:
        own, kafka = self.text("commitGroup"), self.text("group.id")
        if own is not None and kafka is not None and own != kafka:
            raise InvalidOption("commitGroup and group.id are both given and differ")
        group = own or kafka
        if group == "":
            raise InvalidOption("commitGroup is empty: name a consumer group")
        return group

    def columns(self) -> tuple[str, ...]:
        with_headers = self.flag("includeHeaders", False)
        value = self.text("columns")
        if value is None:
            return (*DEFAULT_COLUMNS, "headers") if with_headers else DEFAULT_COLUMNS
        known = {name.lower(): name for name in COLUMNS}
        chosen: list[str] = []
        for part in filter(None, (each.strip() for each in value.split(","))):
            if part.lower() not in known:
                raise InvalidOption(
                    f"columns={value}: there is no column {part}; there are {', '.join(COLUMNS)}"
                )
            if known[part.lower()] in chosen:
                raise InvalidOption(f"columns={value}: {part} is named twice")
            chosen.append(known[part.lower()])
        if not chosen:
            raise InvalidOption(f"columns is empty: choose from {', '.join(COLUMNS)}")
        if with_headers and "headers" not in chosen:
            chosen.append("headers")
        return tuple(chosen)

    def topics(self) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
        ways = {name: self.text(name) for name in ("subscribe", "subscribePattern", "assign")}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            found = "none is" if not given else f"{' and '.join(given)} are"
            raise InvalidOption(f"give one of subscribe, subscribePattern and assign: {found} given")
        match given[0], ways[given[0]] or "":
            case "subscribe", value:
                names = tuple(dict.fromkeys(filter(None, (part.strip() for part in value.split(",")))))
                if not names:
                    raise InvalidOption("subscribe is empty: name topics, several with commas")
                return names, None, ()
            case "subscribePattern", value:
                try:
                    re.compile(value)
                except re.error as error:
                    raise InvalidOption(f"subscribePattern={value}: {error}") from None
                return (), value, ()
            case _, value:
                return (), None, _assigned(value)

    def bound(self, side: Literal["starting", "ending"], default: Literal["earliest", "latest"]) -> Bound:
        names = (f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp")
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidOption(f"{' and '.join(given)} are both given: choose one")
        if not given:
            return Bound(kind=default)
        option = given[0]
        value = self.text(option) or ""
        if option.endswith("ByTimestamp"):
            return Bound(kind="timestamps", numbers=_numbers(option, value, least=0), option=option)
        if option.endswith("Timestamp"):
            return Bound(kind="timestamp", timestamp_ms=self.number(option, 0), option=option)
        if value.lower() == "earliest":
            return Bound(kind="earliest", option=option)
        if value.lower() == "latest":
            return Bound(kind="latest", option=option)
        if not value.startswith("{"):
            raise InvalidOption(f"{option}={value}: must be earliest, latest or JSON such as " + _EXAMPLE)
        numbers = _numbers(option, value, least=-2)
        if side == "ending" and any(-2 in each.values() for each in numbers.values()):
            raise InvalidOption(f"{option}={value}: -2 (the earliest) cannot be the end")
        return Bound(kind="offsets", numbers=numbers, option=option)


_EXAMPLE: Final = '{"orders": {"0": 23, "1": -2}}'


def _numbers(option: str, value: str, *, least: int) -> dict[str, dict[int, int]]:
    """JSON of topics, partitions and offsets or timestamps; -2 and -1 are the earliest and the latest."""

    def refuse() -> NoReturn:
        raise InvalidOption(f"{option}={value}: must be JSON such as {_EXAMPLE}")

    try:
        parsed = json.loads(value)
    except ValueError:
        refuse()
    if not isinstance(parsed, dict):
        refuse()
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            refuse()
        found[topic] = {}
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int:
                refuse()
            if number < least:
                raise InvalidOption(f"{option}: {number} for {topic}-{partition} is less than {least}")
            found[topic][int(partition)] = number
    return found


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    example = '{"orders": [0, 1]}'
    try:
        parsed = json.loads(value)
    except ValueError:
        raise InvalidOption(f"assign={value}: must be JSON such as {example}") from None
    found: list[TopicPartition] = []
    if isinstance(parsed, dict):
        for topic, partitions in parsed.items():
            if not isinstance(partitions, list) or not all(_is_partition(each) for each in partitions):
                raise InvalidOption(f"assign={value}: must be JSON such as {example}")
            found += [TopicPartition(topic, each) for each in sorted(set(partitions))]
    if not found:
        raise InvalidOption(f"assign={value}: must name partitions, such as {example}")
    return tuple(found)


def _is_partition(value: object) -> bool:
    return type(value) is int and value >= 0


def missing_partitions(bound: Bound, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions for which a bound by JSON says nothing."""
    return [each for each in partitions if bound.number(each) is None]
