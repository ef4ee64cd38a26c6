"""Why a transaction coordinator refuses a command. Each class is one answer of the protocol."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class TransactionError(MillraceError):
    """The root of what transaction coordinators refuse."""


class InvalidTransactionalId(TransactionError):
    """A producer without a name has no transactions."""

    def __init__(self) -> None:
        super().__init__("a transactional id must not be empty")


class InvalidTransactionTimeout(TransactionError):
    """The producer asks for more time than the settings allow, or for none."""

    def __init__(self, timeout_ms: int, *, timeout_ms_max: int) -> None:
        super().__init__(f"a transaction time-out of {timeout_ms} ms; allowed are 1 to {timeout_ms_max} ms")


class UnknownTransactionalId(TransactionError):
    """No producer has this name."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"there is no transactional id {transactional_id!r}")


class WrongProducerId(TransactionError):
    """The producer id is not the one that this transactional id has now."""

    def __init__(self, transactional_id: str, producer_id: int) -> None:
        super().__init__(f"producer id {producer_id} does not belong to {transactional_id!r}")


class EpochFenced(TransactionError):
    """A newer producer with the same transactional id, or a time-out, has taken over."""

    def __init__(self, transactional_id: str, epoch: int, *, current: int) -> None:
        super().__init__(f"{transactional_id!r}: epoch {epoch} is fenced, the current one is {current}")


class TransactionEnding(TransactionError):
    """The transaction before is still being ended: try again in a moment."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"{transactional_id!r}: the previous transaction is still being ended")


class InvalidTransactionState(TransactionError):
    """What the producer asks for cannot follow on what has happened."""

    def __init__(self, transactional_id: str, reason: str) -> None:
        super().__init__(f"{transactional_id!r}: {reason}")


class PartitionNotInTransaction(TransactionError):
    """A write to a partition that the open transaction does not have; an abort lets the producer go on."""

    def __init__(self, transactional_id: str, partition: object) -> None:
        super().__init__(f"{transactional_id!r}: {partition} is not part of an open transaction")
