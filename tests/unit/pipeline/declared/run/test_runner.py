"""What a runner makes of the words of Spark; the rest of it runs on Spark, in tests/pipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.pipeline.declared.run.runner import finished_batch


@pytest.mark.parametrize(
    "progress, finished",
    [
        (None, -1),
        ({"batchId": 0, "durationMs": {"addBatch": 12, "triggerExecution": 20}}, 0),
        ({"batchId": 7, "durationMs": {"addBatch": 12}}, 7),
        # Idle: batch 7 is done, and 8 is what would come next.
        ({"batchId": 8, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}, 7),
        ({"batchId": 0, "durationMs": {}}, -1),
    ],
)
def test_a_batch_that_is_only_expected_does_not_count_as_finished(
    progress: dict[str, Any] | None, finished: int
) -> None:
    assert finished_batch(cast("Any", SimpleNamespace(lastProgress=progress))) == finished
