"""Reads the keys of one table of a pipeline file: known names, right types, and a mistake for all else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from millrace.pipeline.declared.language.document import Entry, Items, Node, Scalar, Table, describe
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest
from millrace.pipeline.declared.language.model import Trigger, Watermark

_UNITS_MS: Final = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")
_VARIABLE: Final = re.compile(r"\$\{(?P<name>[^}:]*)(?::-(?P<default>[^}]*))?\}|\$(?P<bare>\$)")
DURATION_FORMS: Final = "a duration such as 30 seconds, 10 minutes, 1h30m"
TRIGGER_FORMS: Final = "always, available-now, every DURATION (every 10 seconds)"


class Fields:
    """The keys of one table. `where` names the table in messages, such as sources.orders."""

    def __init__(
        self, table: Table, where: str, mistakes: Mistakes, environment: Mapping[str, str] | None = None
    ) -> None:
        self.mark: Final = table.mark
        self.where: Final = where
        self._entries: Final = table.entries
        self._mistakes: Final = mistakes
        self._environment: Final = os.environ if environment is None else environment

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def without(self, *keys: str) -> Fields:
        """The same table without some keys, for a part that shares it but not them."""
        entries = {key: entry for key, entry in self._entries.items() if key not in keys}
        return Fields(Table(self.mark, entries), self.where, self._mistakes, self._environment)

    def mark_of(self, key: str) -> Mark:
        entry = self._entries.get(key)
        return self.mark if entry is None else entry.mark

    def only(self, known: Sequence[str]) -> None:
        """Note every key that is not known as a mistake."""
        for key, entry in self._entries.items():
            if key not in known:
                self._mistakes.unknown(entry.mark, f"{self.where}: unknown key {key!r}", key, known)

    def require(self, key: str, example: str) -> None:
        if key not in self._entries:
            self._mistakes.add(self.mark, f"{self.where}: {key!r} is missing", allowed=example)

    def text(self, key: str, default: str | None = None) -> str | None:
        """One value as text, with ${VARIABLE} and ${VARIABLE:-default} filled in."""
        scalar = self.scalar(key)
        return default if scalar is None else self._filled(scalar)

    def scalar(self, key: str) -> Scalar | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if not isinstance(entry.value, Scalar) or entry.value.kind == "null":
            self._wrong(key, entry, "a single value")
            return None
        if not entry.value.text.strip():
            self._mistakes.add(entry.mark, f"{self.where}: {key!r} is empty")
            return None
        return entry.value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list, or one value that stands for a list of one; a comma separates names too."""
        entry = self._entries.get(key)
        match entry:
            case None:
                return ()
            case Entry(value=Items(values=values)):
                found = [self._filled(each) for each in values if isinstance(each, Scalar)]
                if len(found) < len(values) or not found:
                    self._wrong(key, entry, "a list of names")
                return tuple(each.strip() for each in found)
            case Entry(value=Scalar() as scalar) if scalar.kind != "null":
                parts = tuple(part.strip() for part in self._filled(scalar).split(",") if part.strip())
                if not parts:
                    self._mistakes.add(entry.mark, f"{self.where}: {key!r} is empty")
                return parts
            case _:
                self._wrong(key, entry, "a name or a list of names")
                return ()

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        scalar = self.scalar(key)
        if scalar is None:
            return default
        value = self._filled(scalar).replace("_", "-") if "-" in "".join(choices) else self._filled(scalar)
        if value in choices:
            return value
        what = f"{self.where}: {key} cannot be {value!r}"
        self._mistakes.unknown(scalar.mark, what, value, choices)
        return default

    def flag(self, key: str, default: bool) -> bool:
        scalar = self.scalar(key)
        if scalar is None:
            return default
        word = self._filled(scalar).lower()
        if word not in ("true", "false", "yes", "no"):
            self._mistakes.add(
                scalar.mark, f"{self.where}: {key} cannot be {scalar.text!r}", allowed="true, false"
            )
        return word in ("true", "yes")

    def count(self, key: str, default: int) -> int:
        scalar = self.scalar(key)
        if scalar is None:
            return default
        text = self._filled(scalar).replace("_", "")
        if text.isdecimal() and int(text) > 0:
            return int(text)
        self._mistakes.add(
            scalar.mark, f"{self.where}: {key} cannot be {scalar.text!r}", allowed="a whole number above 0"
        )
        return default

    def options(self, key: str) -> dict[str, str]:
        """A table of names and single values, as Spark's options are."""
        entry = self._entries.get(key)
        if entry is None:
            return {}
        if not isinstance(entry.value, Table):
            self._wrong(key, entry, "a table of options, one NAME: VALUE a line")
            return {}
        inner = Fields(entry.value, f"{self.where}.{key}", self._mistakes, self._environment)
        values = {name: inner.text(name) for name in entry.value.entries}
        return {name: value for name, value in values.items() if value is not None}

    def watermark(self) -> Watermark | None:
        """`COLUMN DELAY`, such as `at 10 minutes`."""
        scalar = self.scalar("watermark")
        if scalar is None:
            return None
        column, _, delay = self._filled(scalar).strip().partition(" ")
        delay_ms = parse_duration_ms(delay)
        if delay_ms is None:
            self._mistakes.add(
                scalar.mark,
                f"{self.where}: watermark {scalar.text!r} is not a column and a delay",
                allowed=f"COLUMN DELAY, such as at 10 minutes; the delay is {DURATION_FORMS}",
            )
            return None
        return Watermark(column, delay_ms)

    def trigger(self, default: Trigger) -> Trigger:
        scalar = self.scalar("trigger")
        if scalar is None:
            return default
        text = self._filled(scalar).strip().replace("_", "-")
        if text in ("always", "available-now"):
            return Trigger(text)
        word, _, duration = text.partition(" ")
        every_ms = parse_duration_ms(duration) if word == "every" else None
        if every_ms:
            return Trigger("every", every_ms)
        known = ("always", "available-now", "every 10 seconds")
        self._mistakes.unknown(scalar.mark, f"{self.where}: trigger cannot be {text!r}", text, known)
        return default

    def table(self, key: str, what: str) -> Mapping[str, Entry]:
        entry = self._entries.get(key)
        if entry is None:
            return {}
        if isinstance(entry.value, Table):
            return entry.value.entries
        self._wrong(key, entry, what)
        return {}

    def _filled(self, scalar: Scalar) -> str:
        def value(match: re.Match[str]) -> str:
            if match["bare"]:
                return "$"
            name = match["name"]
            default: str | None = match["default"]
            found = self._environment.get(name, default)
            if found is None:
                known = [each for each in self._environment if each.isupper()]
                self._unset(scalar.mark, name, known)
                return ""
            return found

        return _VARIABLE.sub(value, scalar.text)

    def _unset(self, mark: Mark, name: str, known: Iterable[str]) -> None:
        self._mistakes.add(
            mark,
            f"{self.where}: the environment has no variable {name!r}",
            allowed=f"a variable that is set, or a default: ${{{name}:-value}}",
            meant=closest(name, known) or "",
        )

    def _wrong(self, key: str, entry: Entry, allowed: str) -> None:
        node: Node = entry.value
        self._mistakes.add(entry.mark, f"{self.where}: {key} cannot be {describe(node)}", allowed=allowed)


def parse_duration_ms(text: str) -> int | None:
    """`10 minutes`, `1 hour 30 minutes`, `90s`, `1h30m` in ms; None for any other text."""
    rest, total = text.strip().lower(), 0.0
    if not rest:
        return None
    while rest:
        part = _DURATION_PART.match(rest)
        unit = None if part is None else _UNITS_MS.get(part[2], _UNITS_MS.get(part[2].removesuffix("s")))
        if part is None or unit is None:
            return None
        total += float(part[1]) * unit
        rest = rest[part.end() :]
    return round(total)
