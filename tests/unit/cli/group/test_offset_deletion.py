"""librdkafka itself, called for what confluent-kafka has no call for. No broker is asked here."""

from __future__ import annotations

import pytest

from millrace.cli import clients
from millrace.cli.clients import RequestFailed
from millrace.cli.group.offset_deletion import delete_offsets
from tests.unit.cli.fakes import ADDRESS


def test_a_property_that_the_library_does_not_know_is_told_in_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "client_properties", lambda _broker: {"no.such.property": "1"})
    with pytest.raises(RequestFailed, match=r'No such configuration property: "no\.such\.property"'):
        delete_offsets(ADDRESS, "g", [("t", 0)])


def test_a_value_that_the_library_does_not_take_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "client_properties", lambda _broker: {"security.protocol": "humbug"})
    with pytest.raises(RequestFailed, match=r'Invalid value "humbug" for configuration property'):
        delete_offsets(ADDRESS, "g", [("t", 0)])
