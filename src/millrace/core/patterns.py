"""Regular expressions over names: topics that members of consumer groups subscribe to, transactional ids.

RE2 is safe to run for anybody: no expression takes more than linear time. A pattern remembers its answer for
each name, so that after a change of topics it looks only at new names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    import re2

NAMES_PER_STEP: Final = 1_000
"""So many names take about a millisecond; then other work of the loop gets its turn."""
MEMORY_PER_PATTERN: Final = 1 << 20
"""An expression whose automaton needs more than this many bytes is refused."""
LENGTH_MAX: Final = 4_096


class InvalidPattern(MillraceError):
    """An expression that RE2 cannot read, or that would take too much memory."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"the regular expression {pattern!r} is not valid: {reason}")


class TopicPattern:
    """One expression, with the names that it has been asked about."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._matcher = _compile(text)
        self._known: dict[str, bool] = {}

    def resolve(self, names: Iterable[str]) -> Iterator[frozenset[str] | None]:
        """The names that the pattern matches, after a None for every `NAMES_PER_STEP` new ones."""
        match = self._matcher.Match
        before = self._known
        known: dict[str, bool] = {}
        fresh = 0
        for name in names:
            is_matched = before.get(name)
            if is_matched is None:
                is_matched = bool(match(name))
                fresh += 1
                if fresh % NAMES_PER_STEP == 0:
                    yield None
            known[name] = is_matched
        self._known = known
        yield frozenset(name for name, is_matched in known.items() if is_matched)


def check_pattern(text: str) -> None:
    """Raise InvalidPattern unless RE2 can read the expression in bounded memory."""
    _compile(text)


def _compile(text: str) -> re2.Set:
    # Loaded on first use: most brokers never see a pattern.
    import re2

    if len(text) > LENGTH_MAX:
        raise InvalidPattern(text[:100], f"it has more than {LENGTH_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_PER_PATTERN
    try:
        re2.compile(text, options)
        matcher = re2.Set.FullMatchSet(options)
        matcher.Add(text)
        matcher.Compile()
    except re2.error as error:
        reason = error.args[0]
        raise InvalidPattern(
            text, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from None
    return matcher


class TopicPatterns:
    """The patterns of all groups; each is compiled once, and forgotten when no group has it any more."""

    def __init__(self) -> None:
        self._patterns: dict[str, TopicPattern] = {}

    def get(self, text: str) -> TopicPattern:
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = self._patterns[text] = TopicPattern(text)
        return pattern

    def keep_only(self, texts: Mapping[str, object]) -> None:
        self._patterns = {text: pattern for text, pattern in self._patterns.items() if text in texts}
