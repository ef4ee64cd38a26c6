"""`@override` for Python 3.11, whose `typing` lacks it: checked by mypy, free at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

__all__: Final = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
else:
    _Method = TypeVar("_Method")

    def override(method: _Method) -> _Method:
        return method
