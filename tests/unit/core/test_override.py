"""`@override` costs nothing at run time."""

from __future__ import annotations

from millrace.core.override import override


def test_an_overriding_method_is_the_function_itself() -> None:
    def method() -> int:
        return 1

    before = dict(vars(method))
    assert override(method) is method
    assert vars(method) == before
