"""Looks at what the loop hands to a thread: it must hold nothing that the loop goes on changing.

Loop and threads share no structure that either changes. So whatever a piece of work can reach (its arguments,
the object of a bound method, the variables of a closure) must be immutable, without state, or of a type that
is listed here with the reason why it may cross. Lists and dictionaries may cross too, but belong to the
thread from then on: `Handover.changes` says which of them the loop has changed meanwhile.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

from millrace.core.threads import TellLoop
from millrace.log.directories.survey import Survey
from millrace.log.disk.volume import DiskHandle, DiskOfDirectory, DiskVolume
from millrace.log.partition.log_slice import LogSlice
from millrace.log.segments.detached_segment import DetachedSegment
from millrace.metadata.store.sqlite_file import SqliteFile
from millrace.queues.delayed.index import DelayIndex
from millrace.security.jwt.keys import VerificationKey
from millrace.sim.volume import SimDisk, SimHandle, SimVolume

MAY_CROSS: Final[Mapping[type, str]] = {
    DiskVolume: "its pool of open files, which loop and threads both use, has a lock",
    DiskHandle: "never changes: an open file",
    DiskOfDirectory: "never changes: an open directory",
    SimVolume: "stands for the operating system, which has its own locks",
    SimHandle: "never changes: an open file",
    SimDisk: "stands for the operating system as well",
    LogSlice: "never changes: a range of an open file",
    DetachedSegment: "made for the thread, with files and indexes of its own",
    Survey: "passed on: the loop waits for the thread before it looks at it again",
    DelayIndex: "passed on: whoever keeps it waits for each call, and others read no more than a count",
    SqliteFile: "passed on: one call at a time, and the loop never looks into it",
    VerificationKey: "never changes: a public key of another library, complete since it was read",
    TellLoop: "does nothing but ask the loop",
}

_IMMUTABLE: Final = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    memoryview,
    range,
    Enum,
    type,
    BaseException,
    types.ModuleType,
    types.BuiltinFunctionType,
)
_FIT: Final = (*_IMMUTABLE, *MAY_CROSS)


_HEAP_TYPE: Final = 1 << 9
"""The flag of a class that is written in Python, and so keeps its state in slots or in a dictionary."""


class SharedWithThread(AssertionError):
    """Work for a thread can reach something that the loop goes on changing."""


class Handover:
    """What one piece of work can reach; constructing it looks at all of that."""

    def __init__(self, work: Callable[..., object], arguments: Iterable[object]) -> None:
        self._name = getattr(work, "__qualname__", None) or repr(work)
        self._seen: dict[int, None] = {}
        self._containers: list[tuple[str, list[Any] | dict[Any, Any], list[int]]] = []
        self._look(work, "the work")
        for number, argument in enumerate(arguments):
            self._look(argument, f"argument {number}")

    def changes(self) -> list[str]:
        """Which lists and dictionaries are not what they were when they were handed over."""
        return [
            f"{self._name}: {where} has changed since it was handed to a thread"
            for where, container, before in self._containers
            if _picture(container) != before
        ]

    def _look(self, found: object, where: str) -> None:
        if isinstance(found, _FIT) or id(found) in self._seen:
            return
        self._seen[id(found)] = None
        match found:
            case partial():
                self._look(found.func, f"{where}.func")
                self._look_at_all(found.args, f"{where}.args")
                self._look(found.keywords, f"{where}.keywords")
            case types.MethodType():
                self._look(found.__self__, f"{where}.__self__")
            case types.FunctionType():
                self._look_at_all(found.__defaults__ or (), f"{where}.__defaults__")
                for name, cell in zip(found.__code__.co_freevars, found.__closure__ or (), strict=True):
                    self._look(cell.cell_contents, f"{where}:{name}")
            case tuple() | frozenset():
                self._look_at_all(found, where)
            case list():
                self._containers.append((where, found, _picture(found)))
                self._look_at_all(found, where)
            case dict():
                self._containers.append((where, found, _picture(found)))
                self._look_at_all(found, f"{where} (keys)")
                self._look_at_all(found.values(), where)
            case _ if dataclasses.is_dataclass(found) and type(found).__dataclass_params__.frozen:  # type: ignore[union-attr]
                for field in dataclasses.fields(found):
                    self._look(getattr(found, field.name), f"{where}.{field.name}")
            case _ if _has_no_state(found):
                return
            case _:
                raise SharedWithThread(
                    f"{self._name} is given to a thread, and {where} is a {type(found).__qualname__}, which "
                    f"the loop may change meanwhile"
                )

    def _look_at_all(self, items: Iterable[object], where: str) -> None:
        for number, item in enumerate(items):
            if not isinstance(item, _IMMUTABLE):
                self._look(item, f"{where}[{number}]")


def _has_no_state(found: object) -> bool:
    """Whether an object is there only for its methods, as a codec is."""
    classes = type(found).__mro__[:-1]
    return (
        hasattr(found, "__dict__")
        and not vars(found)
        and not any("__slots__" in vars(each) or not each.__flags__ & _HEAP_TYPE for each in classes)
    )


def _picture(container: list[Any] | dict[Any, Any]) -> list[int]:
    """Which objects a container holds, in which order."""
    if isinstance(container, dict):
        return [id(each) for pair in container.items() for each in pair]
    return [id(each) for each in container]
