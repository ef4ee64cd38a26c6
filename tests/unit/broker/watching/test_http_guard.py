"""Which headers show the token."""

from __future__ import annotations

import hmac

import pytest

from millrace.broker.watching.http_guard import BearerGuard


def test_one_header_with_the_token_admits() -> None:
    guard = BearerGuard("geheim")
    assert guard.admits([(b"host", b"x"), (b"authorization", b"Bearer geheim")])
    assert guard.admits([(b"authorization", b"bearer   geheim ")])
    assert not guard.admits([(b"authorization", b"Bearer geheim")] * 2)
    assert not guard.admits([])


def test_an_empty_token_is_never_shown() -> None:
    for header in (b"", b"Bearer", b"Bearer ", b" "):
        assert not BearerGuard("geheim").admits([(b"authorization", header)])


def test_only_the_newest_token_counts() -> None:
    guard = BearerGuard("first")
    guard.replace("second")
    assert not guard.admits([(b"authorization", b"Bearer first")])
    assert guard.admits([(b"authorization", b"Bearer second")])


def test_the_token_is_not_kept() -> None:
    assert "geheim" not in repr(vars(BearerGuard("geheim")))


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault S10."""
    sizes: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        sizes.append((len(one), len(other)))
        return real(one, other)

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    guard = BearerGuard("geheim")
    assert guard.admits([(b"authorization", b"Bearer geheim")])
    assert not guard.admits([(b"authorization", b"Bearer g")])
    assert sizes == [(32, 32)] * 2, "hashes, which are of one length"
