"""Reads the log of an archive's Delta table without Spark: which files are in it, and its ledger.

Spark's Python data sources plan and read in plain Python processes, so `archive=` needs this. It understands
only what our own archives use of the format; it refuses a table that uses more, and never reads one wrongly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from millrace.pipeline.lake.errors import ArchiveError, ForeignTable, NoArchive
from millrace.pipeline.lake.ledger import Ledger, ledger_of
from millrace.pipeline.lake.location import arrow_url, is_local, table_path
from millrace.pipeline.spark.stores import FROM_ENVIRONMENT, StoreAccess

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Features that change nothing for a reader of our tables: what they guard is checked file by file, or unused.
HARMLESS_FEATURES: Final = frozenset(
    {"vacuumProtocolCheck", "timestampNtz", "deletionVectors", "columnMapping"}
)

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of the table; bounds are None where the log holds no statistics."""

    path: str
    size: int
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The table at one version."""

    version: int
    files: tuple[DataFile, ...]
    ledger: Ledger


def open_store(path: str, access: StoreAccess = FROM_ENVIRONMENT) -> tuple[FileSystem, str]:
    """The file system of a table's path and the path inside it."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, LocalFileSystem

    if is_local(path):
        return LocalFileSystem(), path
    url = arrow_url(path)
    try:
        if url.startswith("s3://"):
            return access.open_s3(url.removeprefix("s3://"))
        store, inside = FileSystem.from_uri(url)
    except (ArrowException, OSError, ValueError) as error:
        raise ArchiveError(f"{path} cannot be opened: {error}") from error
    return store, inside


def read_history(path: str, limit: int | None = None) -> list[tuple[int, str | None]]:
    """Versions with the metadata of their commits, the newest first; empty where no table is."""
    store, base = open_store(path)
    commits, _ = _listed(store, f"{base}/_delta_log")
    history: list[tuple[int, str | None]] = []
    for version in sorted(commits, reverse=True)[:limit]:
        actions = _commit_actions(store, f"{base}/_delta_log/{version:020}.json")
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        history.append((version, infos[0].get("userMetadata") if infos else None))
    return history


def read_snapshot(root: str, topic: str, access: StoreAccess = FROM_ENVIRONMENT) -> Snapshot:
    """The newest version of a topic's archive."""
    path = table_path(root, topic)
    store, base = open_store(path, access)
    commits, checkpoints = _listed(store, f"{base}/_delta_log")
    if not commits:
        raise NoArchive(topic, path)
    state = _State(path)
    start = max((version for version in checkpoints if version <= max(commits)), default=-1)
    for name in checkpoints.get(start, ()):
        state.apply_all(_checkpoint_actions(store, f"{base}/_delta_log/{name}"))
    newer = sorted(version for version in commits if version > start)
    expected = list(range(start + 1, max(commits) + 1))
    if newer != expected:
        missing = next(version for version in expected if version not in commits)
        raise ArchiveError(f"{path}: version {missing} is missing from the table's log")
    ledger: Ledger | None = None
    for version in newer:
        actions = _commit_actions(store, f"{base}/_delta_log/{version:020}.json")
        state.apply_all(actions)
        ledger = _ledger_in(actions) or ledger
    if ledger is None:
        ledger = _older_ledger(store, base, [version for version in commits if version <= start])
    if ledger is None:
        raise ForeignTable(
            f"{path} is a Delta table, but no commit of Millrace is left in its log: run `millrace pipeline"
            " archive` on it once, or read it as an ordinary table"
        )
    return Snapshot(version=max(commits), files=state.files(base), ledger=ledger)


class _State:
    """What the actions of a log add up to."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._added: dict[str, Mapping[str, Any]] = {}

    def apply_all(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            if action.get("protocol"):
                self._check_protocol(action["protocol"])
            if action.get("metaData"):
                self._check_metadata(action["metaData"])
            if action.get("remove"):
                self._added.pop(action["remove"]["path"], None)
            if action.get("add"):
                self._added[action["add"]["path"]] = action["add"]

    def files(self, base: str) -> tuple[DataFile, ...]:
        return tuple(self._file(base, add) for _, add in sorted(self._added.items()))

    def _file(self, base: str, add: Mapping[str, Any]) -> DataFile:
        if add.get("deletionVector"):
            raise ForeignTable(
                f"{self._path}: rows of {add['path']} are marked as deleted by a deletion vector, which only"
                " Spark can read: rewrite the table (REORG TABLE ... APPLY (PURGE)) or use read_with_archive"
            )
        name = unquote(add["path"])
        statistics = json.loads(add.get("stats") or "{}")
        return DataFile(
            # A clone's log names files of another table by their whole URL.
            path=name if "://" in name or name.startswith("/") else f"{base}/{name}",
            size=int(add["size"]),
            partitions=_bounds(statistics, "partition"),
            offsets=_bounds(statistics, "offset"),
        )

    def _check_protocol(self, protocol: Mapping[str, Any]) -> None:
        features = [name for name in protocol.get("readerFeatures") or () if name not in HARMLESS_FEATURES]
        if int(protocol["minReaderVersion"]) > 3 or features:
            needed = ", ".join(features) or f"reader version {protocol['minReaderVersion']}"
            raise ForeignTable(
                f"{self._path} needs {needed}, which only Spark can read: use read_with_archive"
            )

    def _check_metadata(self, metadata: Mapping[str, Any]) -> None:
        settings = metadata.get("configuration") or {}
        # In checkpoints a map comes as a list of pairs.
        mode = dict(settings).get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise ForeignTable(f"{self._path} maps its columns by {mode}: use read_with_archive")


def _listed(store: FileSystem, log: str) -> tuple[set[int], dict[int, list[str]]]:
    """The versions that have a commit file, and the files of each complete checkpoint."""
    from pyarrow.fs import FileSelector

    names = sorted(found.base_name for found in store.get_file_info(FileSelector(log, allow_not_found=True)))
    commits: set[int] = set()
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        commit, checkpoint = _COMMIT.fullmatch(name), _CHECKPOINT.fullmatch(name)
        if commit is not None:
            commits.add(int(commit[1]))
        elif checkpoint is not None:
            parts.setdefault((int(checkpoint[1]), int(checkpoint[3] or 1)), []).append(name)
    # A writer may have died between two parts.
    complete = {version: files for (version, count), files in sorted(parts.items()) if len(files) == count}
    return commits, complete


def _commit_actions(store: FileSystem, name: str) -> list[dict[str, Any]]:
    with store.open_input_file(name) as file:
        content: bytes = file.read()
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _checkpoint_actions(store: FileSystem, name: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    wanted = ("protocol", "metaData", "add", "remove")
    with store.open_input_file(name) as file:
        parquet = pq.ParquetFile(file)
        columns = [column for column in parquet.schema_arrow.names if column in wanted]
        actions: list[dict[str, Any]] = parquet.read(columns=columns).to_pylist()
    return actions


def _ledger_in(actions: Iterable[Mapping[str, Any]]) -> Ledger | None:
    for action in actions:
        ledger = ledger_of((action.get("commitInfo") or {}).get("userMetadata"))
        if ledger is not None:
            return ledger
    return None


def _older_ledger(store: FileSystem, base: str, versions: Iterable[int]) -> Ledger | None:
    """The newest ledger in commits that a checkpoint has replaced but nobody has removed yet."""
    for version in sorted(versions, reverse=True):
        ledger = _ledger_in(_commit_actions(store, f"{base}/_delta_log/{version:020}.json"))
        if ledger is not None:
            return ledger
    return None


def _bounds(statistics: Mapping[str, Any], column: str) -> tuple[int, int] | None:
    low = (statistics.get("minValues") or {}).get(column)
    high = (statistics.get("maxValues") or {}).get(column)
    return None if low is None or high is None else (int(low), int(high))
