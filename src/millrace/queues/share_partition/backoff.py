"""How long a record waits after a delivery that came to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.queues.settings import ShareSettings

_JITTER: Final = 0.2
# Beyond it every setting has reached its greatest wait, and the power would only become a large number.
_DOUBLINGS_MAX: Final = 40


def not_before_ms(
    settings: ShareSettings, delivery_count: int, *, now_ms: int, jitter: Callable[[], float]
) -> int:
    """When a record may be delivered again after so many deliveries; 0 for at once. `jitter` gives numbers
    from 0 to 1, so that what failed together does not come back together."""
    if not settings.retry_backoff_ms:
        return 0
    wait_ms = settings.retry_backoff_ms << min(max(delivery_count - 1, 0), _DOUBLINGS_MAX)
    wait_ms = min(wait_ms, settings.retry_backoff_max_ms)
    return now_ms + max(1, int(wait_ms * (1 + _JITTER * (2 * jitter() - 1))))
