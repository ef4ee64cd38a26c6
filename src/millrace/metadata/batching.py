"""Turns many commands into few commits: all that one transaction can hold, each decided on top of those
before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from millrace.metadata import records
from millrace.metadata.commands import Change, Command, Policy
from millrace.metadata.controller import as_batch, decide
from millrace.metadata.errors import MetadataError
from millrace.metadata.fold import fold
from millrace.metadata.image import Image, PartitionState
from millrace.metadata.leadership import PartitionUpdate
from millrace.metadata.store import Compare, Put

T = TypeVar("T")

COMMANDS_MAX: Final = 100
"""So many commands are decided in one go: more would hold up everything else on the loop."""


class Step(NamedTuple):
    """One transaction of the store."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]
    deletes: tuple[str, ...]
    begun_as: str = ""
    """A key that the first step put. It must be unchanged, or somebody has cleared up meanwhile."""


class Batch(NamedTuple, Generic[T]):
    """Some commands as decided, and what has to be committed for them."""

    outcomes: list[T | MetadataError]
    """The outcomes of the first commands; the rest did not fit and is for the next batch."""
    steps: list[Step]
    """The transactions, in order. Only one of them has compares: those before it mean nothing without it."""


def decide_all(
    image: Image,
    commands: Sequence[Command],
    policy: Policy,
    *,
    first: int = 0,
    operations_max: int,
    outcome_of: Callable[[int, Image, Image], T],
) -> Batch[T]:
    """Decide as many commands from the `first` on as fit into one transaction, at least one.

    `outcome_of` gets a command's place and the images before and after it, and picks what the caller wants to
    know. It must not keep the images: there is one for every command."""
    outcomes: list[T | MetadataError] = []
    merged = _Merged()
    for place in range(first, min(len(commands), first + COMMANDS_MAX)):
        try:
            change = decide(image, commands[place], policy)
        except MetadataError as error:
            outcomes.append(error)
            continue
        if not merged.is_empty and merged.size_with(change) > operations_max:
            break
        merged.add(change)
        after = fold(image, as_batch(image, change))
        outcomes.append(outcome_of(place, image, after))
        image = after
    return Batch(outcomes, merged.steps(operations_max))


def in_transactions(
    updates: Iterable[PartitionUpdate], guards: tuple[Compare, ...], *, operations_max: int
) -> Iterator[Step]:
    """Changes of partitions in as few transactions as hold them, each with the guards."""
    compares = {guard.key: guard for guard in guards}
    puts: list[Put] = []
    encoded: dict[PartitionState, bytes] = {}
    for update in updates:
        own = update.compares()
        if len(compares) + len(own) > operations_max or len(puts) == operations_max:
            yield Step(tuple(compares.values()), tuple(puts), ())
            compares = {guard.key: guard for guard in guards}
            puts = []
        for compare in own:
            compares[compare.key] = compare
        value = encoded.get(update.after)
        if value is None:
            value = encoded[update.after] = records.encode_partition(update.after)
        # The first compare is about the partition itself.
        puts.append(Put(own[0].key, value))
    if puts:
        yield Step(tuple(compares.values()), tuple(puts), ())


@dataclass(slots=True)
class _Merged:
    compares: dict[str, Compare] = field(default_factory=dict)
    early_puts: dict[str, Put] = field(default_factory=dict)
    puts: dict[str, Put] = field(default_factory=dict)
    deletes: dict[str, None] = field(default_factory=dict)
    late_deletes: dict[str, None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.puts or self.deletes or self.early_puts or self.late_deletes)

    @property
    def size(self) -> int:
        return len(self.early_puts) + len(self.puts) + len(self.deletes) + len(self.late_deletes)

    def size_with(self, change: Change) -> int:
        """The size of the transaction with this change in it; compares are counted by themselves."""
        writes = len(change.early_puts) + len(change.puts) + len(change.deletes) + len(change.late_deletes)
        return max(self.size + writes, len(self.compares) + len(change.compares))

    def add(self, change: Change) -> None:
        for compare in change.compares:
            # What this batch itself wrote has no revision in the store yet; the first compare covers it.
            if not (
                compare.key in self.puts or compare.key in self.early_puts or compare.key in self.deletes
            ):
                self.compares.setdefault(compare.key, compare)
        for put in change.early_puts:
            self.late_deletes.pop(put.key, None)
            self.early_puts[put.key] = put
        for put in change.puts:
            self.deletes.pop(put.key, None)
            self.puts[put.key] = put
        for key in change.deletes:
            self.puts.pop(key, None)
            self.deletes[key] = None
        for key in change.late_deletes:
            self.early_puts.pop(key, None)
            self.late_deletes[key] = None

    def steps(self, operations_max: int) -> list[Step]:
        if self.is_empty and not self.compares:
            return []
        compares = tuple(self.compares.values())
        early, puts = list(self.early_puts.values()), list(self.puts.values())
        deletes, late = list(self.deletes), list(self.late_deletes)
        if self.size <= operations_max:
            return [Step(compares, (*early, *puts), (*deletes, *late))]
        after = [Step((), (), part) for part in _parts(late, operations_max)]
        if not early:
            return [Step(compares, tuple(puts), tuple(deletes)), *after]
        # A batch of several steps belongs to one command alone, and so to one topic.
        topic_id, _ = records.partition_of_key(early[0].key)
        key = records.creation_key(topic_id)
        before = [Step((), part, ()) for part in _parts([Put(key, b""), *early], operations_max)]
        return [*before, Step(compares, tuple(puts), (*deletes, key), begun_as=key), *after]


def _parts(items: Sequence[T], length: int) -> Iterator[tuple[T, ...]]:
    for at in range(0, len(items), length):
        yield tuple(items[at : at + length])
