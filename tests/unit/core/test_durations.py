"""Durations in ISO 8601."""

from __future__ import annotations

import pytest

from millrace.core.durations import iso_duration_ms


@pytest.mark.parametrize(
    "text, expected_ms",
    [
        ("PT1H", 3_600_000),
        ("pt1h30m", 5_400_000),
        ("P1D", 86_400_000),
        ("P2DT0.5S", 172_800_500),
        (" PT10S ", 10_000),
    ],
)
def test_a_duration_is_read(text: str, expected_ms: int) -> None:
    assert iso_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "-PT1H", "PT1X", "P1W2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PT1H30M"):
        iso_duration_ms(text)
