"""Fetch: plan from the session, read slices without touching them, wait where there is too little, answer by
sendfile."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.fetch.request import FETCH

__all__: Final = ["FETCH"]
