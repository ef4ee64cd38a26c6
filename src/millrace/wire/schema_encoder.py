"""Compiles an encoder for one message in one version: straight-line Python, adjacent fields packed at once.

Fields that the version lacks are left out silently: what an old version cannot say, the handler has to know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from millrace.wire.schema_fields import ZERO, Field, Message
from millrace.wire.schema_runtime import SHORT_UVARINTS, explain, long_string_prefix, uvarint
from millrace.wire.schema_source import (
    FORMATS,
    SHORT_ARRAY,
    Source,
    element_kind,
    is_array,
    tagged_fields,
    wire_fields,
)

Encoder: TypeAlias = Callable[[object], bytes]

_FAILURES: Final = (struct.error, AttributeError, TypeError, ValueError, OverflowError)
"""How Python refuses a value of the wrong type or size; each ends as a ValueError that names the field."""


def compile_encoder(cls: type[Message], version: int, *, flexible: bool) -> Encoder:
    writer = _EncoderWriter(cls, version, flexible=flexible)
    return writer.source.compile("encode", f"{cls.__name__} v{version} encoder")


def encoder_source(cls: type[Message], version: int, *, flexible: bool) -> str:
    """The text that `compile_encoder` runs, to be read by people."""
    return _EncoderWriter(cls, version, flexible=flexible).source.text()


class _EncoderWriter:
    def __init__(self, cls: type[Message], version: int, *, flexible: bool) -> None:
        self.source = Source()
        self.version = version
        self.flexible = flexible
        # Fixed-size fields not written yet: their formats ("x" is a zero byte), and the values of the others.
        self._formats = ""
        self._values: list[str] = []
        self._out = "out"
        self.source.names.update(
            FAILURES=_FAILURES,
            SHORT=SHORT_UVARINTS,
            explain=explain,
            long_string_prefix=long_string_prefix,
            pack=struct.pack,
            uvarint=uvarint,
        )
        self._write_function(cls)

    def _write_function(self, cls: type[Message]) -> None:
        line, block = self.source.line, self.source.block
        name = self.source.constant(cls.__name__, cls)
        with block("def encode(m):"):
            with block("try:"):
                if self._is_flat(cls):
                    self._write_struct(cls, "m")
                    line(f"return {self._packed()}")
                else:
                    line("out = []")
                    self._write_struct(cls, "m")
                    self._flush()
                    line('return b"".join(out)')
            with block("except FAILURES as error:"):
                line(f"explain(m, {name}, {self.version}, error)")

    def _is_flat(self, cls: type[Message]) -> bool:
        """Whether the struct is written by one `pack`."""
        fields = wire_fields(cls, self.version)
        # A UUID needs its length checked, which `pack` does not.
        return not tagged_fields(cls, self.version) and all(
            field.kind in FORMATS and field.kind != "uuid" for field in fields
        )

    def _write_struct(self, cls: type[Message], message: str) -> None:
        """Write the fields of one struct, leaving fixed-size ones at its end pending."""
        for field in wire_fields(cls, self.version):
            self._write_field(field, f"{message}.{field.name}")
        if not self.flexible:
            return
        tagged = tagged_fields(cls, self.version)
        if tagged:
            self._write_tags(message, tagged)
        else:
            self._formats += "x"

    def _write_field(self, field: Field, value: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if is_array(field):
            self._write_array(field, value, nullable=nullable)
        elif field.struct is not None:
            self._write_inner_struct(field.struct, value, nullable=nullable)
        elif field.kind == "uuid":
            self._write_uuid(value)
        elif field.kind in FORMATS:
            self._formats += FORMATS[field.kind]
            self._values.append(value)
        else:
            self._write_text(field.kind, value, nullable=nullable)

    def _write_inner_struct(self, cls: type[Message], value: str, *, nullable: bool) -> None:
        line, block = self.source.line, self.source.block
        inner = self.source.fresh("m")
        line(f"{inner} = {value}")
        if not nullable:
            self._write_struct(cls, inner)
            return
        self._flush()
        with block(f"if {inner} is None:"):
            line(f'{self._out}.append(b"\\xff")')
        with block("else:"):
            line(f"{self._out}.append(SHORT[1])")
            self._write_struct(cls, inner)
            self._flush()

    def _write_uuid(self, value: str) -> None:
        local = self.source.fresh("u")
        self.source.line(f"{local} = {value}")
        with self.source.block(f"if len({local}) != 16:"):
            self.source.line('raise ValueError("a UUID has 16 bytes")')
        self._formats += FORMATS["uuid"]
        self._values.append(local)

    def _write_text(self, kind: str, value: str, *, nullable: bool) -> None:
        """A string or bytes: its length, and the bytes themselves."""
        line, block = self.source.line, self.source.block
        text, length = self.source.fresh("s"), self.source.fresh("n")
        encoded = f"{value}.encode()" if kind == "string" else value
        null_length, extra = ("0", " + 1") if self.flexible else ("-1", "")
        if nullable:
            with block(f"if {value} is None:"):
                line(f'{text} = b""')
                line(f"{length} = {null_length}")
            with block("else:"):
                line(f"{text} = {encoded}")
                line(f"{length} = len({text}){extra}")
        else:
            line(f"{text} = {encoded}")
            line(f"{length} = len({text}){extra}")
        self._write_length(
            length, "h" if kind == "string" else "i", "long_string_prefix" if kind == "string" else "uvarint"
        )
        line(f"{self._out}.append({text})")

    def _write_length(self, length: str, legacy_format: str, long_prefix: str) -> None:
        """Write a length or count together with the fixed fields before it."""
        line, block = self.source.line, self.source.block
        if not self.flexible:
            self._formats += legacy_format
            self._values.append(length)
            self._flush()
            return
        if not self._formats:
            line(f"{self._out}.append(SHORT[{length}] if {length} < 128 else {long_prefix}({length}))")
            return
        before_formats, before_values = self._formats, list(self._values)
        with block(f"if {length} < 128:"):
            self._formats += "B"
            self._values.append(length)
            self._flush()
        with block("else:"):
            self._formats, self._values = before_formats, before_values
            self._flush()
            line(f"{self._out}.append({long_prefix}({length}))")

    def _write_array(self, field: Field, value: str, *, nullable: bool) -> None:
        line, block = self.source.line, self.source.block
        items = self.source.fresh("items")
        count = self.source.fresh("n")
        null_count, extra = ("0", " + 1") if self.flexible else ("-1", "")
        line(f"{items} = {value}")
        if nullable:
            with block(f"if {items} is None:"):
                line(f"{items} = ()")
                line(f"{count} = {null_count}")
            with block("else:"):
                line(f"{count} = len({items}){extra}")
        else:
            line(f"{count} = len({items}){extra}")
        self._write_length(count, "i", "uvarint")
        self._write_elements(field, items)

    def _write_elements(self, field: Field, items: str) -> None:
        line, block = self.source.line, self.source.block
        kind = element_kind(field)
        element = self.source.fresh("e")
        if field.struct is not None and self._is_flat(field.struct):
            self._write_struct(field.struct, element)
            line(f"{self._out} += [{self._packed()} for {element} in {items}]")
        elif kind in FORMATS and kind != "uuid":
            packs = self.source.array_packers(FORMATS[kind])
            length = self.source.fresh("n")
            line(f"{length} = len({items})")
            with block(f"if {length} < {SHORT_ARRAY}:"):
                line(f"{self._out}.append({packs}[{length}](*{items}))")
            with block("else:"):
                line(f'{self._out}.append(pack(f">{{{length}}}{FORMATS[kind]}", *{items}))')
        else:
            with block(f"for {element} in {items}:"):
                if field.struct is not None:
                    self._write_struct(field.struct, element)
                elif kind == "uuid":
                    self._write_uuid(element)
                else:
                    self._write_text(kind, element, nullable=False)
                self._flush()

    def _write_tags(self, message: str, tagged: list[Field]) -> None:
        """Only fields that differ from their default are sent, in the order of their tags."""
        line, block = self.source.line, self.source.block
        self._flush()
        conditions = [self._is_set(field, f"{message}.{field.name}") for field in tagged]
        with block(f"if {' or '.join(conditions)}:"):
            outer = self._out
            sent, count = self.source.fresh("sent"), self.source.fresh("n")
            line(f"{sent} = []")
            line(f"{count} = 0")
            for field, condition in zip(tagged, conditions, strict=True):
                with block(f"if {condition}:"):
                    self._out = self.source.fresh("out")
                    line(f"{self._out} = []")
                    self._write_field(field, f"{message}.{field.name}")
                    self._flush()
                    body = self.source.fresh("body")
                    line(f'{body} = b"".join({self._out})')
                    line(f"{sent} += (uvarint({field.tag}), uvarint(len({body})), {body})")
                    line(f"{count} += 1")
            self._out = outer
            line(f"{outer}.append(SHORT[{count}])")
            line(f"{outer} += {sent}")
        with block("else:"):
            line(f"{self._out}.append(SHORT[0])")

    def _is_set(self, field: Field, value: str) -> str:
        """Python for "this tagged field differs from its default"."""
        if field.default is None:
            return f"{value} is not None"
        if field.default is not ZERO:
            return f"{value} != {field.default!r}"
        if field.struct is not None and not is_array(field):
            inner = [
                self._is_set(each, f"{value}.{each.name}") for each in wire_fields(field.struct, self.version)
            ]
            return f"({' or '.join(inner)})"
        if field.kind == "uuid":
            return f"{value} != {bytes(16)!r}"
        return value

    def _packed(self) -> str:
        """Python for all pending fixed-size fields packed at once."""
        packed = f"{self.source.packer(self._formats)}({', '.join(self._values)})"
        self._formats = ""
        self._values = []
        return packed

    def _flush(self) -> None:
        if self._formats.strip("x"):
            self.source.line(f"{self._out}.append({self._packed()})")
        elif self._formats:
            self.source.line(f"{self._out}.append({bytes(len(self._formats))!r})")
            self._formats = ""
