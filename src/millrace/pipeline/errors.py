"""Expected failures of pipelines. They end a command or a query with one line, and never reach a client."""

from __future__ import annotations

from millrace.core.errors import MillraceError
from millrace.wire.error_codes import ErrorCode


class PipelineError(MillraceError):
    """A pipeline cannot do what was asked; the message says why and, where it helps, what is allowed."""


class SparkUnavailable(PipelineError):
    """Spark cannot run here: something is not installed, or its jars cannot be had."""


class InvalidOption(PipelineError):
    """An option that is missing, unknown, contradicts another or has a bad value."""


class ConnectionFailed(PipelineError):
    """No broker answers, or a connection ended before the answer came: worth another try."""


class BrokerRefused(PipelineError):
    """A broker answered with an error code."""

    def __init__(self, code: int, subject: str) -> None:
        try:
            error = ErrorCode(code)
        except ValueError:
            super().__init__(f"{subject}: unknown error code {code}")
            self.retriable = False
        else:
            super().__init__(f"{subject}: {error.message} ({error.name})")
            self.retriable = error.retriable
        self.code = code


class UnsupportedBroker(PipelineError):
    """The broker does not serve an API or version that the pipeline needs."""


class DataLost(PipelineError):
    """Records between two known offsets are gone, or the topic is not the one that was read before."""
