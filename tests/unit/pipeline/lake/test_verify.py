"""Fingerprints of two places are compared partition by partition."""

from __future__ import annotations

from millrace.pipeline.lake.verify import NOTHING, Comparison, Fingerprint, compare

ONE, OTHER = Fingerprint(2, 10), Fingerprint(2, 11)


def test_partitions_that_either_place_lacks_are_compared_with_nothing() -> None:
    found = compare({2: ONE, 0: ONE}, {0: ONE, 1: OTHER})
    assert found == [
        Comparison(partition=0, wanted=ONE, found=ONE),
        Comparison(partition=1, wanted=NOTHING, found=OTHER),
        Comparison(partition=2, wanted=ONE, found=NOTHING),
    ]
    assert [each.is_same for each in found] == [True, False, False]


def test_as_many_records_with_another_checksum_are_not_the_same() -> None:
    assert not compare({0: ONE}, {0: OTHER})[0].is_same


def test_a_checksum_has_all_its_digits() -> None:
    assert Fingerprint(1, 255).hexadecimal() == "00000000000000ff"
    assert Fingerprint(1, 2**64 - 1).hexadecimal() == "f" * 16
