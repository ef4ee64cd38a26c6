"""Which names a topic may have, for those who check options and files before they ask a broker."""

from __future__ import annotations

import re
from typing import Final

from millrace.core.limits import TOPIC_NAME_LENGTH_MAX

_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


def is_topic_name(text: str) -> bool:
    """Whether a broker would take this name."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")
