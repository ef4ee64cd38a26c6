"""The text of a codec while it is being written, and the facts about fields that both compilers need."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from millrace.wire.schema_fields import NO_UUID, ZERO, Field, Message

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
"""What has a fixed size, as the `struct` module writes it (all big-endian)."""

ARRAY: Final = "[]"

SHORT_ARRAY: Final = 16
"""Arrays of numbers up to here (replicas, partitions) have a ready-made packer for each length."""


class Source:
    """Lines of Python with the names that they use, compiled once complete."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """A local name that nothing else in this function uses."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def constant(self, prefix: str, value: object) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, formats: str) -> str:
        """The name of the method that packs these formats at once."""
        return self._struct_method("pack", formats)

    def unpacker(self, formats: str) -> str:
        return self._struct_method("unpack", formats)

    def array_packers(self, element: str) -> str:
        """The name of a tuple with a packer for each length below SHORT_ARRAY."""
        return self._array_methods("packs", element)

    def array_unpackers(self, element: str) -> str:
        return self._array_methods("unpacks", element)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        exec(compile(self.text(), f"<{title}>", "exec"), self.names)
        compiled = self.names[function]
        assert callable(compiled)
        return compiled

    def _array_methods(self, prefix: str, element: str) -> str:
        name = f"{prefix}_{element}"
        if name not in self.names:
            shapes = [_array_struct(element, length) for length in range(SHORT_ARRAY)]
            self.names[name] = tuple(
                shape.pack if prefix == "packs" else shape.unpack_from for shape in shapes
            )
        return name

    def _struct_method(self, method: str, formats: str) -> str:
        readable = formats.replace("?", "t")
        name = f"{method}_{readable}"
        if name not in self.names:
            packed = struct.Struct(">" + formats)
            self.names[name] = packed.pack if method == "pack" else packed.unpack_from
        return name


@cache
def _array_struct(element: str, length: int) -> struct.Struct:
    return struct.Struct(f">{length}{element}")


def wire_fields(cls: type[Message], version: int) -> list[Field]:
    """The fields that this version carries in order, without the tagged ones."""
    return [field for field in cls.FIELDS if field.tag is None and field.is_in(version)]


def tagged_fields(cls: type[Message], version: int) -> list[Field]:
    return sorted(
        (field for field in cls.FIELDS if field.tag is not None and field.is_in(version)),
        key=lambda field: field.tag or 0,
    )


def element_kind(field: Field) -> str:
    return field.kind.removeprefix(ARRAY)


def is_array(field: Field) -> bool:
    return field.kind.startswith(ARRAY)


def minimal_size(cls: type[Message], version: int, *, flexible: bool) -> int:
    """The least number of bytes that one struct takes on the wire."""
    size = 1 if flexible else 0
    for field in wire_fields(cls, version):
        if field.kind in FORMATS:
            size += struct.calcsize(">" + FORMATS[field.kind])
        elif field.kind == "struct" and field.struct is not None:
            size += (
                1 if field.is_nullable_in(version) else minimal_size(field.struct, version, flexible=flexible)
            )
        elif flexible:
            size += 1
        else:
            size += 2 if field.kind == "string" else 4
    return size


def default_expression(source: Source, field: Field) -> str:
    """Python for the value of a field that the wire did not carry; a new object wherever it can change."""
    if field.default is not ZERO:
        return repr(field.default)
    if is_array(field):
        return "[]"
    if field.struct is not None:
        return source.constant(field.struct.__name__, field.struct) + "()"
    if field.kind == "uuid":
        return source.constant("NO_UUID", NO_UUID)
    return {"string": '""', "bytes": 'b""', "bool": "False", "float64": "0.0"}.get(field.kind, "0")
