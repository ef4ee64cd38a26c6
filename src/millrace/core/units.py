"""Sizes, rates and durations as people write and read them. Powers of 1000, unless a unit says KiB."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*([A-Za-zµ]*)\s*")
_COUNTS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "million": 1e6, "billion": 1e9}
_BYTES: Final = {
    "": 1.0,
    "b": 1.0,
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgtp", start=1)},
}
_BITS: Final = {f"{letter}bit": 1000.0**power / 8 for power, letter in enumerate("kmgt", start=1)}
_SECONDS: Final = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}


def parse_count(text: str) -> float:
    """A number such as 250000, 1_000_000, 1M or 2.5k."""
    return _parsed(text, _COUNTS, "a number such as 250000, 1M or 2.5k")


def parse_bytes(text: str) -> float:
    """A size such as 512, 1KB, 10MiB or 4TB."""
    return _parsed(text, _BYTES, "a size such as 512, 1KB, 10MiB or 4TB")


def parse_bytes_per_s(text: str) -> float:
    """A rate such as 50MB, 50MB/s or 10Gbit."""
    word = text.strip().removesuffix("/s").removesuffix("ps")
    return _parsed(word, _BYTES | _BITS, "a rate for each second, such as 50MB or 10Gbit")


def parse_seconds(text: str) -> float:
    """A duration such as 90s, 36h or 7d."""
    return _parsed(text, _SECONDS, "a duration such as 90s, 36h, 7d or 2w")


def bytes_text(size: float) -> str:
    """Three digits and a unit: 1.81 PB."""
    return f"{_scaled(size, ('B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'))}"


def count_text(count: float) -> str:
    return _scaled(count, ("", "k", "M", "G")).strip()


def seconds_text(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:,.4g} {unit}"
    return f"{seconds * 1000:,.3g} ms"


def _scaled(number: float, units: tuple[str, ...]) -> str:
    position = 0
    # 999.6 would be shown as 1000 of its own unit.
    while abs(number) >= 999.5 and position < len(units) - 1:
        number /= 1000
        position += 1
    digits = f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"
    return f"{digits} {units[position]}".rstrip()


def _parsed(text: str, units: dict[str, float], forms: str) -> float:
    match = _NUMBER.fullmatch(text)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {forms}")
    return float(match[1].replace("_", "")) * factor
