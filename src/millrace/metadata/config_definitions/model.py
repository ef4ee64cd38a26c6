"""What a setting is: its type, its default, what is allowed, and how text becomes a value and back."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.metadata.errors import InvalidConfig

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigType(enum.IntEnum):
    """The type of a setting. The numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """Where a value comes from. The numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class UpdateMode(enum.Enum):
    """Whether a setting changes while brokers run, and for whom."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(enum.Enum):
    """How soon a reader of the reference should care about a setting."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Range:
    """An inclusive range of numbers; `also` names values outside that are allowed too."""

    low: float
    high: float | None = None
    also: tuple[int, ...] = ()

    def accepts(self, value: Value) -> bool:
        assert isinstance(value, int | float), value
        return value in self.also or (self.low <= value and (self.high is None or value <= self.high))

    def describe(self) -> str:
        text = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return text + "".join(f", or {value}" for value in self.also)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several texts."""

    options: tuple[str, ...]

    def accepts(self, value: Value) -> bool:
        return value in self.options

    def describe(self) -> str:
        return ", ".join(self.options)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose every item is one of the options."""

    options: tuple[str, ...]

    def accepts(self, value: Value) -> bool:
        assert isinstance(value, tuple), value
        return all(item in self.options for item in value) and len(set(value)) == len(value)

    def describe(self) -> str:
        return "a list of " + ", ".join(self.options) + ", each at most once"


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that needs code; `text` says in words what it accepts."""

    test: Callable[[Value], bool]
    text: str

    def accepts(self, value: Value) -> bool:
        return self.test(value)

    def describe(self) -> str:
        return self.text


Validator: TypeAlias = Range | OneOf | ListOf | Check


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that stands in for a topic setting; `factor` turns its unit into the topic's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: what it is called, what it means, and what it may be."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    valid: Validator | None = None
    importance: Importance = Importance.MEDIUM
    update: UpdateMode = UpdateMode.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()
    """For a topic setting: the broker settings behind it, strongest first. For a broker setting: those that
    say the same in a coarser unit, itself included."""
    sensitive: bool = False
    internal: bool = False
    """Whether it is accepted but neither documented nor described, because it is for tests."""
    without_effect: str = ""
    """Why it is accepted and then ignored, for a setting of Kafka that means nothing here."""
    deviates: str = ""
    """Why the default is not Kafka's, where it is not."""

    def parse(self, text: str) -> Value:
        """The value that `text` stands for, or InvalidConfig."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise self._refuse(text, f"not {_TYPE_WORDS[self.type]}") from None
        self.check(value, text)
        return value

    def check(self, value: Value, text: str) -> None:
        bound = _BOUNDS.get(self.type)
        if bound is not None and isinstance(value, int) and not bound[0] <= value <= bound[1]:
            raise self._refuse(text, "out of range")
        if self.valid is not None and value is not None and not self.valid.accepts(value):
            raise self._refuse(text, "not allowed")

    def allowed(self) -> str:
        """What is allowed, in words."""
        if self.valid is not None:
            return self.valid.describe()
        return _TYPE_WORDS[self.type]

    def _refuse(self, text: str, reason: str) -> InvalidConfig:
        shown = "(hidden)" if self.sensitive else text
        return InvalidConfig(self.name, shown, reason, allowed=self.allowed())


def format_value(value: Value) -> str | None:
    """A value as text, the way DescribeConfigs and files show it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return None if value is None else str(value)


def split_list(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list, without blanks around them."""
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def unknown_name(name: str, known: Iterable[str], kind: str) -> InvalidConfig:
    """The error for a name that nobody knows, with the name that was probably meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    hint = f"; did you mean {close[0]}?" if close else ""
    return InvalidConfig(name, None, f"unknown {kind} setting{hint}")


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _parse_integer(text: str) -> int:
    # int() would also take "1_000" and other digits than ours.
    if not (text.isascii() and text.removeprefix("-").removeprefix("+").isdigit()):
        raise ValueError(text)
    return int(text)


def _parse_double(text: str) -> float:
    value = float(text)
    # float() would also take "1_000" and other digits than ours.
    if value != value or "_" in text or not text.isascii():
        raise ValueError(text)
    return value


def _parse_string(text: str) -> str:
    return text


_PARSERS: Final[dict[ConfigType, Callable[[str], Value]]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: _parse_string,
    ConfigType.INT: _parse_integer,
    ConfigType.SHORT: _parse_integer,
    ConfigType.LONG: _parse_integer,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: split_list,
    ConfigType.CLASS: _parse_string,
    ConfigType.PASSWORD: _parse_string,
}
_BOUNDS: Final[dict[ConfigType, tuple[int, int]]] = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_TYPE_WORDS: Final[dict[ConfigType, str]] = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list, separated by commas",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a secret",
}
