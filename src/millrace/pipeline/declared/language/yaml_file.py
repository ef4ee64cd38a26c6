"""Pipeline files in YAML: from PyYAML's nodes, which keep their places, to the common tree."""

from __future__ import annotations

from typing import Final

import yaml

from millrace.pipeline.declared.language.document import Entry, Items, Node, Scalar, Table
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes

_TOO_DEEP: Final = "not a pipeline: it is nested too deeply"


def read_yaml(text: str, mistakes: Mistakes) -> Table | None:
    """The tree of a YAML file, or None if it has none; what is wrong with it goes to `mistakes`."""
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        mistakes.add(_mark(mark), f"not YAML: {error.problem or error.context}{_hint(text, mark)}")
        return None
    except yaml.YAMLError as error:
        mistakes.add(Mark(1), f"not YAML: {error}")
        return None
    except RecursionError:
        mistakes.add(Mark(1), _TOO_DEEP)
        return None
    if not documents or documents[0] is None:
        mistakes.add(Mark(1), "the file is empty", allowed="a table with the keys pipeline, sources, sinks")
        return None
    if len(documents) > 1:
        mistakes.add(_mark(documents[1].start_mark), "a second document: one file declares one pipeline")
    try:
        tree = _Reader(mistakes).convert(documents[0])
    except RecursionError:
        mistakes.add(Mark(1), _TOO_DEEP)
        return None
    if not isinstance(tree, Table):
        mistakes.add(tree.mark, "the file is not a table of keys", allowed="pipeline, sources, steps, sinks")
        return None
    return tree


class _Reader:
    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        # An alias is the same node again. We convert a node once, or a small file could grow without bound.
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def convert(self, node: yaml.Node) -> Node:
        if id(node) in self._done:
            return self._done[id(node)]
        mark = _mark(node.start_mark)
        if id(node) in self._open:
            self._mistakes.add(mark, "an alias inside what it stands for")
            return Scalar(text="", kind="null", mark=mark, text_mark=mark)
        self._open.add(id(node))
        converted = self._convert_new(node, mark)
        self._open.discard(id(node))
        self._done[id(node)] = converted
        return converted

    def _convert_new(self, node: yaml.Node, mark: Mark) -> Node:
        if isinstance(node, yaml.MappingNode):
            return self._table(node, mark)
        if isinstance(node, yaml.SequenceNode):
            return Items(mark, [self.convert(each) for each in node.value])
        assert isinstance(node, yaml.ScalarNode), node
        in_block = node.style in ("|", ">")
        return Scalar(
            text=str(node.value),
            kind=node.tag.rpartition(":")[2],
            mark=mark,
            text_mark=Mark(mark.line + 1, 1) if in_block else mark,
        )

    def _table(self, node: yaml.MappingNode, mark: Mark) -> Table:
        table = Table(mark)
        for key, value in node.value:
            key_mark = _mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                self._mistakes.add(key_mark, "a key that is not a word")
                continue
            name = str(key.value)
            if name in table.entries:
                first = table.entries[name].mark.line
                self._mistakes.add(key_mark, f"{name!r} is here twice, first on line {first}")
                continue
            table.entries[name] = Entry(key_mark, self.convert(value))
        return table


def _mark(mark: yaml.Mark | None) -> Mark:
    return Mark(1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _hint(text: str, mark: yaml.Mark | None) -> str:
    """Name the slip, if it is one of the two behind most of these messages."""
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return ""
    if "\t" in lines[mark.line][: mark.column + 1]:
        return " (tabs do not indent in YAML: use spaces)"
    if ": " in lines[mark.line].partition(":")[2]:
        return " (a value with ': ' in it needs quotes)"
    return ""
