"""`python -m fuzz`: every fuzzer in turn; each can be run alone with its own options."""

from __future__ import annotations

import sys

from fuzz import decoders

if __name__ == "__main__":
    sys.exit(decoders.main())
