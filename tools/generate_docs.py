"""Write every page of docs/ that is derived from the code, or with --check only say which are out of date."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.metadata.config_definitions.markdown import render_markdown
from tools import generate_protocol_support

PAGES: Final[tuple[tuple[Path, Callable[[], str]], ...]] = (
    (generate_protocol_support.PAGE, generate_protocol_support.render),
    (generate_protocol_support.PAGE.with_name("configuration.md"), render_markdown),
)


def stale_pages() -> list[str]:
    """The pages whose text differs from what the code says now."""
    return [path.name for path, render in PAGES if not path.exists() or path.read_text() != render()]


def main() -> int:
    if "--check" in sys.argv[1:]:
        stale = stale_pages()
        if stale:
            print(f"out of date: {', '.join(stale)}; run 'make docs'", file=sys.stderr)
        return 1 if stale else 0
    for path, render in PAGES:
        path.write_text(render())
        print(f"wrote docs/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
