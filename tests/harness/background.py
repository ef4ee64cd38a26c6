"""An owner of background work for tests of the parts that need one: what fails in it fails the test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace.core.background import Background


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    owner = Background(random.Random(0))
    task = asyncio.current_task()
    assert task is not None
    owner.when_fatal(task.cancel)
    try:
        yield owner
    except asyncio.CancelledError:
        if owner.fatal is None:
            raise
        task.uncancel()
        raise owner.fatal from None
    finally:
        await owner.end()
    assert not owner.failures.counts, owner.failures.counts
