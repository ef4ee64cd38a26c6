"""Expected failures of pipelines. They end a command or a query with one line, and never reach a client.

Those of brokers and of options are in `client/errors.py`.
"""

from __future__ import annotations

from millrace.core.errors import MillraceError


class PipelineError(MillraceError):
    """A pipeline cannot do what was asked; the message says why and, where it helps, what is allowed."""


class SparkUnavailable(PipelineError):
    """Spark cannot run here: something is not installed, or its jars cannot be had."""


class DataLost(PipelineError):
    """Records between two known offsets are gone, or the topic is not the one that was read before."""
