"""Expected failures of pipelines. They end a command or a query with one line, and never reach a client."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class PipelineError(MillraceError):
    """A pipeline cannot do what was asked; the message says why and, where it helps, what is allowed."""


class SparkUnavailable(PipelineError):
    """Spark cannot run here: something is not installed, or its jars cannot be had."""
