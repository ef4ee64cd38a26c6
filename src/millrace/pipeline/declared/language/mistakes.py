"""What is wrong in a pipeline file: collected with line numbers, so that all of it can be said at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.pipeline.errors import PipelineError

# Two words that are less alike than this are different words, not a slip of the finger.
_SIMILAR_ENOUGH: Final = 0.6


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file, both counted from 1."""

    line: int
    column: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong, or (`warning`) legal but hardly meant."""

    mark: Mark
    what: str
    allowed: str = ""
    meant: str = ""
    warning: bool = False

    def text(self) -> str:
        words = self.what
        if self.meant:
            words += f"; did you mean {self.meant!r}?"
        if self.allowed:
            words += (" " if self.meant else "; ") + f"allowed: {self.allowed}"
        return words


@dataclass(slots=True)
class Mistakes:
    """The mistakes found so far: checking goes on after the first, so that a user sees all at once."""

    found: list[Mistake] = field(default_factory=list)

    def add(self, mark: Mark, what: str, *, allowed: str = "", meant: str = "") -> None:
        self.found.append(Mistake(mark, what, allowed, meant))

    def warn(self, mark: Mark, what: str) -> None:
        self.found.append(Mistake(mark, what, warning=True))

    def unknown(self, mark: Mark, what: str, name: str, known: Iterable[str]) -> None:
        """A name that is none of those known: say which are, and which was probably meant."""
        names = list(known)
        self.add(mark, what, allowed=", ".join(names) or "none", meant=closest(name, names) or "")

    def in_order(self) -> list[Mistake]:
        """All mistakes by line; one that was found twice is there once."""
        return sorted(dict.fromkeys(self.found))

    @property
    def fatal(self) -> bool:
        return any(not mistake.warning for mistake in self.found)


class InvalidPipeline(PipelineError):
    """A pipeline's file cannot be run; the message lists every mistake in it."""

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        errors = [mistake for mistake in mistakes if not mistake.warning]
        count = f"{len(errors)} mistake{'' if len(errors) == 1 else 's'}"
        lines = [line_of(path, mistake) for mistake in mistakes]
        super().__init__(f"{path}: {count}\n" + "\n".join(lines))
        self.path = path
        self.mistakes = mistakes


def line_of(path: Path, mistake: Mistake) -> str:
    """`file:line: what is wrong`, as compilers print it and editors understand it."""
    kind = "warning: " if mistake.warning else ""
    return f"{path}:{mistake.mark.line}: {kind}{mistake.text()}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one is probably a slip of, whatever its case."""
    by_folded = {each.casefold(): each for each in known}
    if name in by_folded.values():
        return None
    found = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=_SIMILAR_ENOUGH)
    return by_folded[found[0]] if found else None
