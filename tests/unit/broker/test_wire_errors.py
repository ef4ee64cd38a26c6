"""Every expected failure has a code for clients, and only one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import millrace
from millrace.broker.wire_errors import WIRE_ERRORS, error_code, error_message, record_errors
from millrace.core.errors import MillraceError
from millrace.log.batches.validation import InvalidRecords, RecordError
from millrace.log.errors import DiskFull, InvalidRecord
from millrace.metadata.errors import Conflict
from millrace.wire.error_codes import ErrorCode

BESIDE_REQUESTS = (
    "millrace.cli.",
    "millrace.client.",
    "millrace.sim.",
    "millrace.pipeline.",
    "millrace.broker.app",
)
"""Programs of their own, and the start of the broker: their failures never reach a client. Those of
connections to other brokers become PeerUnreachable."""


def subclasses(parent: type[MillraceError]) -> Iterator[type[MillraceError]]:
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_expected_failure_has_a_wire_code() -> None:
    for module in pkgutil.walk_packages(millrace.__path__, "millrace."):
        if not module.name.startswith(BESIDE_REQUESTS) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {
        error
        for error in subclasses(MillraceError)
        if error.__module__.startswith("millrace.") and not error.__module__.startswith(BESIDE_REQUESTS)
    }
    assert ours == set(WIRE_ERRORS), "broker/wire_errors.py has one line for each class"


def test_a_client_is_told_what_is_wrong_and_what_is_allowed() -> None:
    error = DiskFull("write", "orders-0/00000000000000000000.log", "no space left")
    assert error_code(error) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_message(error) == str(error)


def test_our_own_bugs_keep_their_details_to_the_log() -> None:
    assert error_code(Conflict(["topics/orders"])) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "orders" not in str(error_message(Conflict(["topics/orders"])))


def test_the_records_to_blame_are_named_where_they_are_known() -> None:
    bad = (RecordError(3, "a record without a key"),)
    assert record_errors(InvalidRecords(bad)) == ((3, "a record without a key"),)
    assert record_errors(InvalidRecord("the control bit is set")) == ()
