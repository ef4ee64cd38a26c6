"""What went wrong in Spark, in a line: our own message if one is inside, else Spark's first sentence."""

from __future__ import annotations

import re
from typing import Final

from millrace.core.errors import MillraceError
from millrace.pipeline.spark.missing_package import find_missing_package

# The last line of a worker's traceback, which Spark carries inside a Java exception's text.
_OURS: Final = re.compile(
    r"^(?:\s*)millrace\.[\w.]+: (?P<message>.+?)(?=\n\s*\n|\n\s*at |\n\tat |\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception)): (?P<message>.*)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?(?P<name>[\w$]+)(?:: (?P<message>.*))?$", re.MULTILINE)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\.?")
_JAVA_NAME: Final = re.compile(r"^(?:[\w$]+\.)+(?P<rest>[\w$]+.*)$")


# A file system that is a jar of its own, which a session that we did not make may lack.
_NO_FILE_SYSTEM: Final = re.compile(r"Class org\.apache\.hadoop\.fs\.\S+ not found|No FileSystem for scheme")
_HOW_TO_ADD: Final = (
    "its jar is not there: make_session(locations=[URL]) brings the one for S3, others come by"
    " spark.jars.packages (docs/pipeline.md, Object stores)"
)


def is_spark_error(error: BaseException) -> bool:
    """Whether Spark or the bridge to its JVM raised this."""
    return type(error).__module__.split(".", 1)[0] in ("pyspark", "py4j")


def is_analysis_error(error: BaseException | None) -> bool:
    """Whether Spark refused a query before it read anything: another try would find the same."""
    return type(error).__name__ in ("AnalysisException", "ParseException")


def explain(error: BaseException) -> str:
    """One line, or a few if the message itself has them, without any traceback."""
    if isinstance(error, MillraceError):
        return str(error)
    return explain_text(str(error)) or type(error).__name__


def explain_text(text: str) -> str:
    """Explain an error that Spark gives as text, with its whole trace."""
    # Behind this line Spark prints the whole query and its offsets.
    text = text.partition("\n=== Streaming Query ===")[0].strip()
    missing = find_missing_package(text)
    if missing is not None:
        return missing
    ours = list(_OURS.finditer(text))
    if ours:
        return _SQLSTATE.sub("", ours[-1]["message"]).strip()
    if "Traceback (most recent call last)" in text:
        python = list(_PYTHON.finditer(text))
        if python:
            return f"{python[-1]['name'].rpartition('.')[2]}: {python[-1]['message']}".rstrip(": ")
    if _NO_FILE_SYSTEM.search(text):
        return f"{_java_sentence(text)}: {_HOW_TO_ADD}"
    return _java_sentence(text)


def _java_sentence(text: str) -> str:
    causes = [match for match in _CAUSE.finditer(text) if match["message"]]
    if causes and "\tat " in text:
        return _without_state(f"{causes[-1]['name']}: {causes[-1]['message']}")
    first = next((line for line in text.splitlines() if line.strip() and not _is_preamble(line)), "")
    first = first.lstrip(": ")
    named = _JAVA_NAME.match(first)
    return _without_state(first if named is None else named["rest"])


def _is_preamble(line: str) -> bool:
    return line.startswith("An error occurred while calling")


def _without_state(sentence: str) -> str:
    return _SQLSTATE.sub("", sentence.split(";\n", 1)[0]).strip().rstrip(";")
