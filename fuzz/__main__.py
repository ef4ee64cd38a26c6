"""`python -m fuzz`: every fuzzer in turn; each can be run alone with its own options."""

from __future__ import annotations

import sys

from fuzz import decoders, logins, permissions

if __name__ == "__main__":
    sys.exit(max(fuzzer.main() for fuzzer in (decoders, logins, permissions)))
