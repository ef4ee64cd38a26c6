"""Cancellations are found by id, whichever generation they are of, and go when nobody needs them."""

from __future__ import annotations

import pytest

from millrace.queues.delayed import cancellations
from millrace.queues.delayed.cancellations import Cancellations


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Cancellations:
    monkeypatch.setattr(cancellations, "GENERATION_MAX", 3)
    known = Cancellations()
    for offset, key in enumerate([2**64 - 1, 5, 7, 5, 9, 1, 4]):
        known.add(key, 10 + offset)
    return known


def test_the_last_word_on_an_id_counts(known: Cancellations) -> None:
    assert [known.get(key) for key in (2**64 - 1, 5, 7, 9, 1, 4, 8)] == [10, 13, 12, 14, 15, 16, -1]
    assert len(known) == 7


def test_the_index_gets_each_once_and_what_it_knows_not_again(known: Cancellations) -> None:
    assert [offset for _, offset in known.added] == list(range(10, 17))
    known.added = []
    known.restore(77, 20)
    assert (known.added, known.get(77)) == ([], 20)


def test_generations_are_forgotten_whole(known: Cancellations) -> None:
    known.forget_before(13)
    assert (known.get(7), known.get(5), known.get(4)) == (-1, 13, 16)
    known.forget_before(16)
    assert (known.get(1), known.get(4)) == (-1, 16)
    known.forget_before(17)
    assert len(known) == 0
