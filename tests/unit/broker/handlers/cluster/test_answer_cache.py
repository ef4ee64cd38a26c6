"""Encoded answers are kept for one revision of the cluster, and not without bounds."""

from __future__ import annotations

from millrace.broker.handlers.cluster.answer_cache import ENTRIES_MAX, AnswerCache


def test_an_answer_is_found_under_its_key_while_the_revision_stays() -> None:
    cache = AnswerCache()
    cache.keep("v12", 7, b"twelve")
    cache.keep("v13", 7, b"thirteen")
    assert (cache.find("v12", 7), cache.find("v13", 7), cache.find("v14", 7)) == (
        b"twelve",
        b"thirteen",
        None,
    )


def test_no_answer_of_another_revision_is_found_neither_older_nor_newer() -> None:
    cache = AnswerCache()
    cache.keep("v12", 7, b"seven")
    assert cache.find("v12", 6) is None
    assert cache.find("v12", 8) is None


def test_the_first_answer_of_a_new_revision_forgets_all_of_the_old_one() -> None:
    cache = AnswerCache()
    cache.keep("v12", 7, b"old")
    cache.keep("v13", 7, b"old as well")
    cache.keep("v12", 8, b"new")
    assert cache.find("v12", 8) == b"new"
    assert cache.find("v13", 8) is None


def test_a_full_cache_begins_anew_with_the_answer_that_did_not_fit() -> None:
    cache = AnswerCache()
    for number in range(ENTRIES_MAX):
        cache.keep(number, 1, b"body")
    assert all(cache.find(number, 1) == b"body" for number in range(ENTRIES_MAX))
    cache.keep("one more", 1, b"last")
    assert cache.find("one more", 1) == b"last"
    assert not any(cache.find(number, 1) for number in range(ENTRIES_MAX))
