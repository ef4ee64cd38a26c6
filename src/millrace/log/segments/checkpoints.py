"""Small text files beside the logs: offsets by partition, the clean-shutdown mark, the identity files.

A file that is missing or damaged is "nothing known": whoever asks does the longer work instead. Only a
checksum tells a number that could be right from the one that was written, and Kafka's layout has none. So
each row ends in a checksum made of blanks: Kafka splits rows at blanks, and sees what it would have written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from crc32c import crc32c

from millrace.core.ids import TopicId, TopicPartition, format_topic_id, parse_topic_id
from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing

logger: Final = logging.getLogger(__name__)

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
SCRUB_TIMES: Final = "scrub-time-checkpoint"
"""When each log was last gone through for damage, in milliseconds since 1970 in the place of an offset."""
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"

_VERSION: Final = 0
_BLANKS: Final = " \t"
_BYTE_IN_BLANKS: Final = [f"{byte:08b}".translate(str.maketrans("01", _BLANKS)) for byte in range(256)]


def format_lines(rows: Iterable[str]) -> bytes:
    """Kafka's checkpoint layout: version, number of rows, rows, each with its checksum in blanks."""
    lines = [row + _checksum(row) for row in rows]
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode()


def parse_lines(data: bytes, *, fields: int) -> list[list[str]] | None:
    """The rows split at blanks, or None if the file is not whole."""
    lines = _lines(data)
    if lines is None or not all(is_intact(line, fields=fields) for line in lines):
        return None
    return [line.split() for line in lines]


def is_intact(line: str, *, fields: int) -> bool:
    """Whether a row is as it was written, if that can be told: what Kafka wrote has no checksum."""
    row = line.rstrip(_BLANKS)
    return line[len(row) :] in ("", _checksum(row)) and len(row.split()) == fields


def _lines(data: bytes) -> list[str] | None:
    """The rows, or None if there are not as many as the file says."""
    # Split at line feeds alone: a flipped bit can make characters that end lines for `splitlines`.
    lines = data.decode(errors="replace").removesuffix("\n").split("\n")
    try:
        return lines[2:] if int(lines[0]) == _VERSION and int(lines[1]) == len(lines) - 2 else None
    except (ValueError, IndexError):
        return None


def _checksum(row: str) -> str:
    """Sixteen bits of a row's checksum, each a blank or a tab."""
    checksum = crc32c(row.encode())
    return _BYTE_IN_BLANKS[checksum >> 8 & 0xFF] + _BYTE_IN_BLANKS[checksum & 0xFF]


def read_offsets(volume: Volume, path: str) -> dict[TopicPartition, int]:
    try:
        data = volume.read_bytes(path)
    except FileMissing:
        return {}
    if not data:
        # Kafka creates its checkpoints empty.
        return {}
    lines = _lines(data)
    if lines is not None:
        # Rows do not depend on each other, so a damaged one costs only itself.
        rows = [line.split() for line in lines if is_intact(line, fields=3)]
        found = _offsets(rows)
        if found is not None:
            if len(rows) < len(lines):
                logger.warning("%s: damaged rows are left out", path)
            return found
    logger.warning("%s is damaged and counts as empty", path)
    return {}


def _offsets(rows: list[list[str]]) -> dict[TopicPartition, int] | None:
    try:
        found = {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in rows}
    except ValueError:
        return None
    # A flipped bit can turn the name of one partition into that of another.
    return found if len(found) == len(rows) and all(offset >= 0 for offset in found.values()) else None


def write_offsets(
    volume: Volume, path: str, offsets: Mapping[TopicPartition, int], *, durable: bool = True
) -> None:
    rows = [f"{topic} {number} {offset}" for (topic, number), offset in offsets.items()]
    volume.write_bytes(path, format_lines(rows), durable=durable)


def read_clean_shutdown(volume: Volume, directory: str) -> bool:
    """Whether the last owner of the directory, Millrace or Kafka, closed it in order."""
    return volume.exists(f"{directory}/{CLEAN_SHUTDOWN}")


def write_clean_shutdown(volume: Volume, directory: str, *, broker_epoch: int = -1) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    volume.write_bytes(f"{directory}/{CLEAN_SHUTDOWN}", content.encode())


def remove_clean_shutdown(volume: Volume, directory: str) -> None:
    volume.remove(f"{directory}/{CLEAN_SHUTDOWN}")
    volume.sync_directory(directory)


def read_properties(volume: Volume, path: str) -> dict[str, str] | None:
    """The pairs of a Java properties file as Kafka writes it, or None if there is no file."""
    try:
        text = volume.read_bytes(path).decode(errors="replace")
    except FileMissing:
        return None
    pairs = (
        line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith(("#", "!"))
    )
    return {key.strip(): value.strip() for key, value in pairs}


def write_properties(volume: Volume, path: str, pairs: Mapping[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in sorted(pairs.items()))
    volume.write_bytes(path, text.encode())


def read_partition_metadata(volume: Volume, directory: str) -> TopicId | None:
    """The topic id that the partition's directory was created for, or None if it cannot be told."""
    try:
        text = volume.read_bytes(f"{directory}/{PARTITION_METADATA}").decode(errors="replace")
    except FileMissing:
        return None
    pairs = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        if int(pairs["version"]) == _VERSION:
            return parse_topic_id(pairs["topic_id"].strip())
    except (KeyError, ValueError):
        pass
    logger.warning("%s/%s is damaged and counts as missing", directory, PARTITION_METADATA)
    return None


def write_partition_metadata(
    volume: Volume, directory: str, topic_id: TopicId, *, durable: bool = True
) -> None:
    text = f"version: {_VERSION}\ntopic_id: {format_topic_id(topic_id)}\n"
    volume.write_bytes(f"{directory}/{PARTITION_METADATA}", text.encode(), durable=durable)
