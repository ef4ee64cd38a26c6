"""A volume that does not wait for the disk: where durability is not the subject it only costs time."""

from __future__ import annotations

from millrace.core.override import override
from millrace.log.disk.volume import DiskFile, DiskVolume


class UnsyncedFile(DiskFile):
    @override
    def sync(self) -> None:
        return


class UnsyncedVolume(DiskVolume):
    @override
    def file(self, path: str, *, create: bool = False) -> DiskFile:
        return UnsyncedFile(self.pool, path, create=create)

    @override
    def sync_directory(self, path: str) -> None:
        return

    @override
    def whole_disk(self, path: str) -> None:
        return None

    @override
    def write_bytes(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write_bytes(path, data, durable=False)
