"""The end of a broker, step after step: a step that fails or takes too long does not keep the broker from
taking the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from millrace.core.errors import MillraceError

log = logging.getLogger(__name__)

STEP_S_MAX: Final = 10.0


async def step(
    name: str, work: Awaitable[None], timeout_s: float = STEP_S_MAX, consequence: str = "the others go on"
) -> None:
    """Take one step, within its time."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        log.error("%s was not done in %g s: %s", name, timeout_s, consequence)
    except MillraceError as error:
        log.error("%s failed (%s): %s", name, error, consequence)
    except Exception:
        log.exception("%s failed: %s", name, consequence)
