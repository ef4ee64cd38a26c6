"""Decoded columns of an archive: the value as a struct, and the reason where it does not fit its schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DECODED: Final = "decoded"
DECODE_ERROR: Final = "decodeError"


def make_decoder(form: str, schema: str, message: str | None) -> Callable[[DataFrame], DataFrame]:
    """A function that adds both columns. `schema` is a file or a text; a wrong one raises at once."""
    from millrace.pipeline.payloads import decode, read_payload

    source = Path(schema) if "\n" not in schema and Path(schema).is_file() else schema
    read_payload(form, source, message=message)

    def decoded(rows: DataFrame) -> DataFrame:
        # A value that does not parse is archived as it is: the bytes are what counts.
        with_values = decode(rows, form, source, into=DECODED, mode="permissive", message=message)
        return with_values.withColumnRenamed("error", DECODE_ERROR)

    return decoded
