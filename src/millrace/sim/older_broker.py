"""A broker as an earlier release would have been: it serves fewer versions of some APIs, and writes offsets
and groups in an older form. There is no earlier release yet; this is what one would look like (F31).

Between brokers there has been only one version of what they say, and this broker speaks it too.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from millrace.broker.app import Broker
from millrace.broker.assembly.ground import Release
from millrace.broker.config.config import BrokerConfig
from millrace.broker.handlers import APIS
from millrace.broker.handlers.cluster.api_versions import api_versions_response
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.surroundings import Surroundings
from millrace.coordinator.decision import Record
from millrace.core.override import override
from millrace.groups.commands import CommittedOffset
from millrace.groups.records import GroupRecordCodec, stored_offset
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millrace.wire.messages.group_records import GroupMetadataValue, OffsetCommitValue
from millrace.wire.schema_encoder import compile_encoder

OLDER_VERSIONS: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 11,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.JOIN_GROUP: 8,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.INIT_PRODUCER_ID: 4,
}
"""The newest version that it serves of each API, not older than what its peers use or what transactions of
the present protocol need."""
_OFFSET_VERSION: Final = 3
_GROUP_VERSION: Final = 2
_INT16: Final = struct.Struct(">h")
_encode_offset = compile_encoder(OffsetCommitValue, _OFFSET_VERSION, flexible=False)
_encode_group = compile_encoder(GroupMetadataValue, _GROUP_VERSION, flexible=False)


def _answer_versions(ctx: RequestContext, _request: ApiVersionsRequest) -> ApiVersionsResponse:
    return api_versions_response(OLDER_APIS, ctx.api_version)


def _older(api: Api) -> Api:
    least, most = api.versions
    if api.key == ApiKey.API_VERSIONS:
        return replace(api, handle=_answer_versions)
    # The quick ways write the newest form.
    return replace(api, versions=(least, min(most, OLDER_VERSIONS.get(api.key, most))), quick=None)


OLDER_APIS: Final = tuple(_older(api) for api in APIS)


class OlderGroupRecords(GroupRecordCodec):
    """Writes offsets and groups in their older form."""

    @override
    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = super().encode(record)
        if isinstance(record.value, CommittedOffset) and record.value.expire_ms < 0:
            value = _INT16.pack(_OFFSET_VERSION) + _encode_offset(stored_offset(record.value))
        elif isinstance(record.value, GroupMetadataValue):
            value = _INT16.pack(_GROUP_VERSION) + _encode_group(record.value)
        return key, value


class OlderBroker(Broker):
    """A broker of the earlier release."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        super().__init__(config, surroundings, Release(apis=OLDER_APIS, group_records=OlderGroupRecords()))
