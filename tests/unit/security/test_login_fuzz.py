"""A few seconds of what `python -m fuzz.logins` does for longer: no bytes may do worse than be refused."""

from __future__ import annotations

from fuzz.logins import LetIn, Target, all_targets, find_fault, run
from millrace.security.errors import TokenExpired


def test_no_damaged_token_raises_anything_but_a_refusal_or_lets_anybody_in() -> None:
    tried, faults = run(seconds=2, seed=20261118)
    assert not faults, "\n".join(fault.describe() for fault in faults[:3])
    assert tried >= 11 * len(list(all_targets()))


def test_a_fault_would_be_noticed() -> None:
    def failing(error: Exception) -> Target:
        def take(_: bytes) -> None:
            raise error

        return Target("x", lambda _: b"", take)

    assert find_fault(failing(LetIn("alice")), b"x") is not None
    assert find_fault(failing(KeyError("x")), b"x") is not None
    assert find_fault(failing(TokenExpired()), b"x") is None
