"""Durations as ISO 8601 writes them, such as `PT1H30M`."""

from __future__ import annotations

import re
from typing import Final

_ISO: Final = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


def iso_duration_ms(text: str) -> int:
    """The milliseconds of a duration; raises ValueError for anything that is none."""
    found = _ISO.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as PT1H30M")
    days, hours, minutes, seconds = (float(found[unit] or 0) for unit in "dhms")
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
