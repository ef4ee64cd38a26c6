"""Columns of bytes into columns of values and back.

A payload that does not fit becomes an error beside its row; it ends the query only if the mode is `fail`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, overload

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.json_payload import CORRUPT, TO_JSON, JsonPayload
from millrace.pipeline.payloads.schemas import Payload, SchemaSource, Undecodable, read_payload

ERROR: Final = "error"
"""The column that says why a payload does not fit."""
MODES: Final = ("dead_letter", "permissive", "fail")
_RESULT: Final = "_millrace_result"
_VALUE: Final = "value"
_IS_BAD: Final = "_millrace_is_bad"

Mode = Literal["dead_letter", "permissive", "fail"]


class Decoded(NamedTuple):
    """Rows that parse, with a column of their values; and those that do not, with a column `error`."""

    good: DataFrame
    bad: DataFrame


@overload
def decode(
    df: DataFrame,
    format: str,
    schema: SchemaSource,
    *,
    column: str = "value",
    into: str = "decoded",
    mode: Literal["dead_letter"] = "dead_letter",
    message: str | None = None,
) -> Decoded: ...
@overload
def decode(
    df: DataFrame,
    format: str,
    schema: SchemaSource,
    *,
    column: str = "value",
    into: str = "decoded",
    mode: Literal["permissive", "fail"],
    message: str | None = None,
) -> DataFrame: ...
def decode(
    df: DataFrame,
    format: str,  # noqa: A002
    schema: SchemaSource,
    *,
    column: str = "value",
    into: str = "decoded",
    mode: Mode = "dead_letter",
    message: str | None = None,
) -> Decoded | DataFrame:
    """Parse the payloads of `column` into a struct column `into`.

    `dead_letter` gives two frames, see `Decoded`. `permissive` gives one with both columns: a row has a value
    or an error. `fail` ends the query at the first payload that does not parse. A null payload is a null
    value.
    """
    _check_mode(mode)
    payload = read_payload(format, schema, message=message)
    _check_bytes(df, column)
    _check_free(df, into, ERROR)
    if isinstance(payload, JsonPayload):
        return _decode_json(df, payload, column, into, mode)
    kind = StructType([StructField(_VALUE, payload.spark_type), StructField(ERROR, StringType())])
    result = _decoding(payload, kind)(_named(column).cast(BinaryType()))
    marked = df.withColumn(_RESULT, result).select(
        "*", sf.col(f"{_RESULT}.{_VALUE}").alias(into), sf.col(f"{_RESULT}.{ERROR}").alias(ERROR)
    )
    marked = marked.drop(_RESULT)
    if mode == "permissive":
        return marked
    if mode == "fail":
        return _failing(marked, into, _not_parsed(column))
    return Decoded(
        marked.filter(sf.col(ERROR).isNull()).drop(ERROR), marked.filter(sf.col(ERROR).isNotNull()).drop(into)
    )


@overload
def encode(
    df: DataFrame,
    format: str,
    schema: SchemaSource,
    *,
    columns: Sequence[str] | None = None,
    into: str = "value",
    mode: Literal["permissive", "fail"] = "fail",
    message: str | None = None,
) -> DataFrame: ...
@overload
def encode(
    df: DataFrame,
    format: str,
    schema: SchemaSource,
    *,
    columns: Sequence[str] | None = None,
    into: str = "value",
    mode: Literal["dead_letter"],
    message: str | None = None,
) -> Decoded: ...
def encode(
    df: DataFrame,
    format: str,  # noqa: A002
    schema: SchemaSource,
    *,
    columns: Sequence[str] | None = None,
    into: str = "value",
    mode: Mode = "fail",
    message: str | None = None,
) -> DataFrame | Decoded:
    """Make payloads of `columns` (default: all that the schema names) in a binary column `into`.

    The columns that went into the payload are dropped; all others stay, such as key and topic.
    """
    _check_mode(mode)
    payload = read_payload(format, schema, message=message)
    chosen = _columns_to_encode(df, payload, columns)
    if ERROR not in chosen or mode == "dead_letter":
        _check_free(df, ERROR)
    source = sf.struct(*[_named(name) for name in chosen])
    payload.check_encodable(StructType([df.schema[name] for name in chosen]))
    if isinstance(payload, JsonPayload):
        encoded = sf.encode(sf.to_json(source, TO_JSON), "UTF-8")
        marked = df.withColumn(_RESULT, sf.struct(encoded.alias(_VALUE), _no_text().alias(ERROR)))
    else:
        kind = StructType([StructField(_VALUE, BinaryType()), StructField(ERROR, StringType())])
        marked = df.withColumn(_RESULT, _encoding(payload, kind)(source))
    values, errors = sf.col(f"{_RESULT}.{_VALUE}").alias(into), sf.col(f"{_RESULT}.{ERROR}").alias(ERROR)
    if mode == "dead_letter":
        # A row that cannot be written keeps its columns: they are all that is left of it.
        kept = marked.select(*map(_named, df.columns), values.alias("_millrace_value"), errors)
        good = kept.filter(sf.col(ERROR).isNull()).drop(ERROR, *chosen)
        bad = kept.filter(sf.col(ERROR).isNotNull()).drop("_millrace_value")
        return Decoded(good.withColumnRenamed("_millrace_value", into), bad)
    rest = [name for name in df.columns if name not in chosen and name != into]
    frame = marked.select(*map(_named, rest), values, errors)
    return frame if mode == "permissive" else _failing(frame, into, "a row cannot be encoded: ")


def _decode_json(
    df: DataFrame, payload: JsonPayload, column: str, into: str, mode: Mode
) -> Decoded | DataFrame:
    value = _named(column).cast(BinaryType())
    result = sf.col(_RESULT)
    is_bad = result.isNull() | result[CORRUPT].isNotNull() | ~sf.is_valid_utf8(value.cast("string"))
    for name in payload.required():
        is_bad = is_bad | result[name].isNull()
    is_bad = value.isNotNull() & is_bad
    fields = [result[name].alias(name) for name in payload.spark_type.fieldNames()]
    decoded = sf.when(value.isNotNull() & ~is_bad, sf.struct(*fields))
    marked = df.withColumn(_RESULT, payload.parsed(value))
    marked = marked.withColumn(into, decoded).withColumn(_IS_BAD, is_bad).drop(_RESULT)
    words = _explaining(payload)
    if mode == "dead_letter":
        # Only bad payloads go through Python.
        bad = marked.filter(sf.col(_IS_BAD)).withColumn(ERROR, words(value))
        return Decoded(marked.filter(~sf.col(_IS_BAD)).drop(_IS_BAD), bad.drop(_IS_BAD, into))
    marked = marked.withColumn(ERROR, words(sf.when(sf.col(_IS_BAD), value))).drop(_IS_BAD)
    return marked if mode == "permissive" else _failing(marked, into, _not_parsed(column))


def _not_parsed(column: str) -> str:
    return f"a payload in column {column!r} does not parse: "


def _explaining(payload: JsonPayload) -> Callable[[Column], Column]:
    """Find words for bad payloads; good ones come in as nulls."""
    from millrace.pipeline.payloads.json_payload import explain

    schema = payload.spark_type

    def explain_all(values: pa.Array) -> pa.Array:
        texts = [None if value is None else explain(value, schema) for value in values.to_pylist()]
        return pa.array(texts, pa.string())

    return _arrow_function(explain_all, StringType())


def _decoding(payload: Payload, kind: StructType) -> Callable[[Column], Column]:
    def decode_all(values: pa.Array) -> pa.Array:
        from millrace.pipeline.payloads.arrow import built, decoder_of

        decode_one = decoder_of(payload)
        rows: list[dict[str, Any] | None] = []
        errors: list[str | None] = []
        for value in values.to_pylist():
            try:
                rows.append(None if value is None else decode_one(value))
                errors.append(None)
            except Undecodable as error:
                rows.append(None)
                errors.append(str(error))
        return built(rows, errors, kind)

    return _arrow_function(decode_all, kind)


def _encoding(payload: Payload, kind: StructType) -> Callable[[Column], Column]:
    def encode_all(rows: pa.Array) -> pa.Array:
        from millrace.pipeline.payloads.arrow import built, encoder_of

        encode_one = encoder_of(payload)
        values: list[bytes | None] = []
        errors: list[str | None] = []
        for row in rows.to_pylist(maps_as_pydicts="lossy"):
            try:
                values.append(encode_one(row))
                errors.append(None)
            except Undecodable as error:
                values.append(None)
                errors.append(str(error))
        return built(values, errors, kind)

    return _arrow_function(encode_all, kind)


def _arrow_function(function: Callable[[Any], Any], kind: DataType) -> Callable[[Column], Column]:
    # Spark learns from the annotations what kind of function it is.
    make: Any = arrow_udf
    # Otherwise the optimiser copies the call into the filter behind it, and parses every payload twice.
    found: Callable[[Column], Column] = make(function, kind).asNondeterministic()
    return found


def _failing(marked: DataFrame, into: str, words: str) -> DataFrame:
    failed = sf.raise_error(sf.concat(sf.lit(words), sf.col(ERROR)))
    checked = sf.when(sf.col(ERROR).isNotNull(), failed.cast(marked.schema[into].dataType))
    return marked.withColumn(into, checked.otherwise(sf.col(into))).drop(ERROR)


def _named(name: str) -> Column:
    """The column of this name, whatever characters are in it."""
    return sf.col("`" + name.replace("`", "``") + "`")


def _no_text() -> Column:
    return sf.lit(None).cast(StringType())


def _columns_to_encode(df: DataFrame, payload: Payload, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        chosen = [name for name in payload.spark_type.fieldNames() if name in df.columns]
        if not chosen:
            raise InvalidOption(
                f"none of the schema's fields ({', '.join(payload.spark_type.fieldNames())}) is a column; "
                f"there are {', '.join(df.columns)}"
            )
        return chosen
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise InvalidOption(f"there is no column {missing[0]!r}, only {', '.join(df.columns)}")
    return list(columns)


def _check_bytes(df: DataFrame, column: str) -> None:
    if column not in df.columns:
        raise InvalidOption(f"there is no column {column!r} to decode, only {', '.join(df.columns)}")
    kind = df.schema[column].dataType
    if not isinstance(kind, (BinaryType, StringType)):
        raise InvalidOption(f"column {column!r} is {kind.simpleString()}: payloads are binary or string")


def _check_free(df: DataFrame, *names: str) -> None:
    taken = [name for name in names if name in df.columns]
    if taken:
        raise InvalidOption(f"a column {taken[0]!r} is to be added, but there is one: rename or drop it")


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise InvalidOption(f"mode={mode!r}: must be {', '.join(MODES[:-1])} or {MODES[-1]}")
