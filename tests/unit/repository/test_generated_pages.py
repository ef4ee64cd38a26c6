"""Pages that are derived from the code must say what the code says."""

from __future__ import annotations

from millrace.broker.handlers import APIS
from tools.generate_docs import stale_pages
from tools.generate_protocol_support import NOTES, OTHER_REASON, REASONS, render


def test_no_generated_page_is_out_of_date() -> None:
    assert stale_pages() == [], "run `make docs`"


def test_every_api_is_either_served_or_left_out_for_a_reason() -> None:
    served = {int(api.key) for api in APIS}
    explained = [key for _, keys in REASONS for key in keys]
    assert len(explained) == len(set(explained))
    assert served.isdisjoint(explained), "an API that is served needs no excuse"
    assert set(NOTES) <= served
    assert f"| {OTHER_REASON} |" not in render()
