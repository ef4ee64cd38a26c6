"""The APIs of queues: share fetches and acknowledgements."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.queues.share_acknowledge import SHARE_ACKNOWLEDGE
from millrace.broker.handlers.queues.share_fetch import SHARE_FETCH

__all__: Final = ["QUEUE_APIS"]

QUEUE_APIS: Final = (SHARE_FETCH, SHARE_ACKNOWLEDGE)
