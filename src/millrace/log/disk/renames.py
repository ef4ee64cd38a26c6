"""Several renames that happen together or not at all, as far as the disk lets us."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing, HalfRenamed, StorageError


def rename_all(volume: Volume, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rename each source to its target, in this order; a source that is missing is passed over.

    If one fails, those before it get their old names back. Returns the pairs that were renamed."""
    done: list[tuple[str, str]] = []
    for source, target in pairs:
        try:
            volume.rename(source, target)
        except FileMissing:
            continue
        except StorageError:
            rename_back(volume, done)
            raise
        done.append((source, target))
    return done


def rename_back(volume: Volume, done: Iterable[tuple[str, str]]) -> None:
    """Undo renames, the last one first. Raises HalfRenamed if that is not possible."""
    for source, target in reversed(list(done)):
        try:
            volume.rename(target, source)
        except StorageError as error:
            raise HalfRenamed("rename back", target, error.reason) from error
