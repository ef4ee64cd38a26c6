"""The workers' half of payload functions: made once in each worker, with Arrow columns as results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from millrace.pipeline.payloads.schemas import Payload

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_MADE: Final[dict[tuple[Payload, str], Any]] = {}
_MADE_MAX: Final = 32


def decoder_of(payload: Payload) -> Callable[[bytes], dict[str, Any]]:
    """The payload's decoder, made once for all batches of a worker: parsing a schema takes its time."""
    decoder: Callable[[bytes], dict[str, Any]] = _remembered(payload, "decoder")
    return decoder


def encoder_of(payload: Payload) -> Callable[[dict[str, Any]], bytes]:
    encoder: Callable[[dict[str, Any]], bytes] = _remembered(payload, "encoder")
    return encoder


def built(values: Sequence[Any], errors: list[str | None], kind: StructType) -> pa.StructArray:
    """A column of values beside a column of errors. A value that the type cannot hold becomes an error."""
    value_type, error_type = (to_arrow_type(field.dataType, timezone="UTC") for field in kind.fields)
    try:
        column = pa.array(values, value_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        column = _built_one_by_one(values, errors, value_type)
    return pa.StructArray.from_arrays([column, pa.array(errors, error_type)], names=kind.fieldNames())


def _built_one_by_one(values: Sequence[Any], errors: list[str | None], value_type: pa.DataType) -> pa.Array:
    kept: list[Any] = []
    for index, value in enumerate(values):
        try:
            pa.array([value], value_type)
            kept.append(value)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            kept.append(None)
            errors[index] = f"a value does not fit its column: {str(error).splitlines()[0]}"
    return pa.array(kept, value_type)


def _remembered(payload: Payload, name: str) -> Any:
    key = (payload, name)
    if key not in _MADE:
        if len(_MADE) >= _MADE_MAX:
            _MADE.clear()
        _MADE[key] = getattr(payload, name)()
    return _MADE[key]
