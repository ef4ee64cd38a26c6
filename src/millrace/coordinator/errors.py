"""Why a coordinator did not carry out a command; all of it can be tried again, here or elsewhere."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class NotCoordinator(MillraceError):
    def __init__(self, partition: object) -> None:
        super().__init__(f"this broker does not lead {partition}")


class CoordinatorLoading(MillraceError):
    def __init__(self, partition: object) -> None:
        super().__init__(f"{partition} is being loaded")


class CoordinatorNotAvailable(MillraceError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class RecordsTooLarge(MillraceError):
    """One decision's records do not fit into a batch of the internal topic."""

    def __init__(self, size_bytes: int, *, size_bytes_max: int) -> None:
        super().__init__(
            f"{size_bytes} bytes of records; a batch of the internal topic holds {size_bytes_max}"
        )
