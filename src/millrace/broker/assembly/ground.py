"""What every part of a broker stands on."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.broker.config.live import LiveConfig
from millrace.broker.handlers import APIS
from millrace.broker.network.dispatch import Api
from millrace.broker.surroundings import Surroundings
from millrace.core.background import Background
from millrace.groups.records import GroupRecordCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What may differ between brokers of one cluster while it is upgraded: which versions of which APIs they
    serve, and in which form they store groups. The simulator brings an older release."""

    apis: tuple[Api, ...] = APIS
    group_records: GroupRecordCodec = field(default_factory=GroupRecordCodec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What every function that builds a part is handed."""

    config: LiveConfig
    surroundings: Surroundings
    background: Background
    release: Release
