"""Compiles a decoder for one message in one version: straight-line Python, nested structs and loops inlined.

Everything that the wire announces is checked against the bytes that remain before it is used, and the memory
of the objects built is a bounded multiple of them. A decoder raises MalformedRequest and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from millrace.wire.errors import MalformedRequest
from millrace.wire.schema_fields import Field, Message
from millrace.wire.schema_runtime import (
    OBJECTS_BYTES_FREE,
    OBJECTS_PER_BYTE_MAX,
    STRING_LENGTH_MAX,
    bad_count,
    bad_length,
    bad_tag,
    long_uvarint,
    too_dense,
    trailing,
)
from millrace.wire.schema_source import (
    FORMATS,
    SHORT_ARRAY,
    Source,
    default_expression,
    element_kind,
    is_array,
    minimal_size,
    tagged_fields,
    wire_fields,
)

Buffer: TypeAlias = bytes | bytearray | memoryview
Decoder: TypeAlias = Callable[..., Any]
"""decode(buffer, position=0, end=None) -> message, of the class that the caller asked for."""

# Rough sizes of Python objects, to bound what an array of many tiny elements can take.
_OBJECT: Final = 32
_SLOT: Final = 8
_NUMBER: Final = 32
_TEXT: Final = 50
_LIST: Final = 56


def compile_decoder(cls: type[Message], version: int, *, flexible: bool, exact: bool = True) -> Decoder:
    """Compile a decoder; with `exact` it refuses bytes behind the message."""
    writer = _DecoderWriter(cls, version, flexible=flexible, exact=exact)
    return writer.source.compile("decode", f"{cls.__name__} v{version} decoder")


def decoder_source(cls: type[Message], version: int, *, flexible: bool) -> str:
    """The text that `compile_decoder` runs, to be read by people."""
    return _DecoderWriter(cls, version, flexible=flexible).source.text()


class _DecoderWriter:
    def __init__(self, cls: type[Message], version: int, *, flexible: bool, exact: bool = True) -> None:
        self.source = Source()
        self.version = version
        self.flexible = flexible
        self._exact = exact
        # Fixed-size fields not read yet: their formats, and where each value goes.
        self._formats = ""
        self._targets: list[str] = []
        self.source.names.update(
            new=object.__new__,
            struct_error=struct.error,
            unpack_from=struct.unpack_from,
            MalformedRequest=MalformedRequest,
            bad_count=bad_count,
            bad_length=bad_length,
            bad_tag=bad_tag,
            long_uvarint=long_uvarint,
            too_dense=too_dense,
            trailing=trailing,
        )
        self._write_function(cls)

    def _write_function(self, cls: type[Message]) -> None:
        title = f"{cls.__name__} v{self.version}"
        line, block = self.source.line, self.source.block
        with block("def decode(buffer, position=0, end=None):"):
            # `bytes` gives single bytes and slices most cheaply, and most of a message is copied anyway.
            with block("if type(buffer) is not bytes or end is not None:"):
                line("buffer = bytes(buffer[position:end])")
                line("position = 0")
            line("end = len(buffer)")
            line(f"budget = {OBJECTS_PER_BYTE_MAX} * (end - position) + {OBJECTS_BYTES_FREE}")
            with block("try:"):
                message = self._write_struct(cls)
            with block("except (struct_error, IndexError):"):
                line(f'raise MalformedRequest("{title}: the message is cut short") from None')
            with block("except UnicodeDecodeError as error:"):
                line(
                    f'raise MalformedRequest(f"{title}: text that is not UTF-8: {{error.reason}}") from None'
                )
            if self._exact:
                with block("if position != end:"):
                    line(f'raise trailing("{title}", end - position)')
            line(f"return {message}")

    def _write_struct(self, cls: type[Message]) -> str:
        """Write the reading of one struct and name the variable that holds it."""
        message = self.source.fresh("m")
        self.source.line(f"{message} = new({self.source.constant(cls.__name__, cls)})")
        tagged = tagged_fields(cls, self.version)
        for field in cls.FIELDS:
            if field.tag is not None or not field.is_in(self.version):
                self.source.line(f"{message}.{field.name} = {default_expression(self.source, field)}")
        for field in wire_fields(cls, self.version):
            self._write_field(field, f"{message}.{field.name}", f"{cls.__name__}.{field.name}")
        if self.flexible:
            self._write_tags(cls, message, tagged)
        self._flush()
        return message

    def _write_field(self, field: Field, target: str, path: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if is_array(field):
            self._write_array(field, target, path, nullable=nullable)
        elif field.struct is not None:
            self._write_inner_struct(field.struct, target, nullable=nullable)
        elif field.kind in FORMATS:
            self._formats += FORMATS[field.kind]
            self._targets.append(target)
        else:
            self._write_text(field.kind, target, path, nullable=nullable)

    def _write_inner_struct(self, cls: type[Message], target: str, *, nullable: bool) -> None:
        if not nullable:
            self._flush()
            self.source.line(f"{target} = {self._write_struct(cls)}")
            return
        present = self.source.fresh("n")
        self._formats += "b"
        self._targets.append(present)
        self._flush()
        with self.source.block(f"if {present} < 0:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.source.line(f"{target} = {self._write_struct(cls)}")

    def _write_text(self, kind: str, target: str, path: str, *, nullable: bool) -> None:
        """A string or bytes: a length, and so many bytes."""
        line, block = self.source.line, self.source.block
        length = self._write_length("h" if kind == "string" else "i", path, kind)
        stop = self.source.fresh("stop")
        line(f"{stop} = position + {length}")
        with block(f"if {length} < 0 or {stop} > end:"):
            if nullable:
                with block(f"if {length} != -1:"):
                    line(f'raise bad_length("{path}", {length}, end - position)')
                line(f"{target} = None")
            else:
                line(f'raise bad_length("{path}", {length}, end - position)')
        value = f"buffer[position:{stop}]" + (".decode()" if kind == "string" else "")
        with block("else:"):
            line(f"{target} = {value}")
            line(f"position = {stop}")

    def _write_length(self, legacy_format: str, path: str, kind: str) -> str:
        """Read a length or count together with the fixed fields before it; -1 is null in both encodings."""
        line, block = self.source.line, self.source.block
        length = self.source.fresh("n")
        self._formats += "B" if self.flexible else legacy_format
        self._targets.append(length)
        self._flush()
        if self.flexible:
            with block(f"if {length} > 127:"):
                line(f"{length}, position = long_uvarint(buffer, position - 1)")
                if kind == "string":
                    with block(f"if {length} > {STRING_LENGTH_MAX + 1}:"):
                        line(f'raise bad_length("{path}", {length} - 1, end - position)')
            line(f"{length} -= 1")
        return length

    def _write_array(self, field: Field, target: str, path: str, *, nullable: bool) -> None:
        line, block = self.source.line, self.source.block
        count = self._write_length("i", path, "array")
        size = self._element_size(field)
        remain = "end - position" if size == 1 else f"(end - position) // {size}"
        with block(f"if not 0 <= {count} <= {remain}:"):
            if nullable:
                with block(f"if {count} != -1:"):
                    line(f'raise bad_count("{path}", {count}, end - position)')
                line(f"{target} = None")
            else:
                line(f'raise bad_count("{path}", {count}, end - position)')
        with block("else:"):
            self._write_elements(field, target, path, count)

    def _write_elements(self, field: Field, target: str, path: str, count: str) -> None:
        line, block = self.source.line, self.source.block
        kind = element_kind(field)
        if kind in FORMATS and kind != "uuid":
            formats = FORMATS[kind]
            with block(f"if {count} < {SHORT_ARRAY}:"):
                line(f"{target} = list({self.source.array_unpackers(formats)}[{count}](buffer, position))")
            with block("else:"):
                line(f'{target} = list(unpack_from(f">{{{count}}}{formats}", buffer, position))')
            line(f"position += {count} * {struct.calcsize('>' + formats)}")
            return
        line(f"budget -= {count} * {self._element_cost(field)}")
        with block("if budget < 0:"):
            line(f'raise too_dense("{path}", {count})')
        items = self.source.fresh("items")
        line(f"{target} = {items} = []")
        with block(f"for _ in range({count}):"):
            if field.struct is not None:
                element = self._write_struct(field.struct)
            elif kind == "uuid":
                element = self.source.fresh("value")
                self._formats += FORMATS[kind]
                self._targets.append(element)
                self._flush()
            else:
                element = self.source.fresh("value")
                self._write_text(kind, element, path, nullable=False)
            line(f"{items}.append({element})")

    def _write_tags(self, cls: type[Message], message: str, tagged: list[Field]) -> None:
        """Tags come in any order; the last of several with one number counts; unknown ones are skipped."""
        line, block = self.source.line, self.source.block
        count = self.source.fresh("n")
        self._formats += "B"
        self._targets.append(count)
        self._flush()
        tag, size, stop = (self.source.fresh(name) for name in ("tag", "size", "stop"))
        with block(f"if {count}:"):
            with block(f"if {count} > 127:"):
                line(f"{count}, position = long_uvarint(buffer, position - 1)")
            with block(f"if {count} > (end - position) // 2:"):
                line(f'raise bad_count("{cls.__name__} tagged fields", {count}, end - position)')
            with block(f"for _ in range({count}):"):
                line(f"{tag}, position = long_uvarint(buffer, position)")
                line(f"{size}, position = long_uvarint(buffer, position)")
                line(f"{stop} = position + {size}")
                with block(f"if {stop} > end:"):
                    line(f'raise bad_tag("{cls.__name__}", {tag}, {size})')
                for field in tagged:
                    with block(f"if {tag} == {field.tag}:"):
                        self._write_field(field, f"{message}.{field.name}", f"{cls.__name__}.{field.name}")
                        self._flush()
                        with block(f"if position != {stop}:"):
                            line(f'raise bad_tag("{cls.__name__}", {tag}, {size})')
                line(f"position = {stop}")

    def _flush(self) -> None:
        """Read all pending fixed-size fields at once."""
        if not self._formats:
            return
        line = self.source.line
        if self._formats == "B":
            line(f"{self._targets[0]} = buffer[position]")
        else:
            line(f"{', '.join(self._targets)}, = {self.source.unpacker(self._formats)}(buffer, position)")
        line(f"position += {struct.calcsize('>' + self._formats)}")
        self._formats = ""
        self._targets = []

    def _element_size(self, field: Field) -> int:
        if field.struct is not None:
            return minimal_size(field.struct, self.version, flexible=self.flexible)
        kind = element_kind(field)
        if kind in FORMATS:
            return struct.calcsize(">" + FORMATS[kind])
        return 1 if self.flexible else 2 if kind == "string" else 4

    def _element_cost(self, field: Field) -> int:
        """About how many bytes of memory one element of an array takes, whatever few bytes it came from."""
        if field.struct is None:
            return _SLOT + _TEXT
        return _SLOT + self._struct_cost(field.struct)

    def _struct_cost(self, cls: type[Message]) -> int:
        cost = _OBJECT
        for field in cls.FIELDS:
            carried = field.is_in(self.version)
            cost += _SLOT
            if is_array(field):
                cost += _LIST
            elif field.struct is not None:
                cost += self._struct_cost(field.struct)
            elif carried and field.tag is None and field.kind not in ("bool", "int8"):
                cost += _NUMBER if field.kind in FORMATS else _TEXT
        return cost
