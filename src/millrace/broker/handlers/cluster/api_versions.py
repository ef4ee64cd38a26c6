"""ApiVersions: what this broker serves. The answer comes from the list of APIs, so it cannot promise anything
else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from millrace.broker.network.checks import NONE
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

CLIENT_SOFTWARE_FROM: Final = 3
_CLIENT_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSION_MIN: Final = 7
METADATA_VERSION_MAX: Final = 30
"""The level of Kafka 4.3, by which tools tell what the cluster can do."""
GROUP_VERSION: Final = "group.version"
GROUP_VERSION_MAX: Final = 1
"""Consumer groups of KIP-848."""
SHARE_VERSION: Final = "share.version"
SHARE_VERSION_MAX: Final = 1
"""Share groups of KIP-932."""
STREAMS_VERSION: Final = "streams.version"
STREAMS_VERSION_MAX: Final = 1
"""Streams groups of KIP-1071."""
TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_MAX: Final = 2
"""Every transaction has an epoch of its own (KIP-890)."""
FEATURES: Final = (
    (METADATA_VERSION, METADATA_VERSION_MIN, METADATA_VERSION_MAX),
    (GROUP_VERSION, 0, GROUP_VERSION_MAX),
    (TRANSACTION_VERSION, 0, TRANSACTION_VERSION_MAX),
    (SHARE_VERSION, 0, SHARE_VERSION_MAX),
    (STREAMS_VERSION, 0, STREAMS_VERSION_MAX),
)
"""Each with its lowest and its highest version; all are finalised at the highest. A client takes them for a
promise."""
FEATURES_FROM_ZERO: Final = 4
"""Older versions cannot carry a feature whose lowest version is 0."""


def api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.api_version >= CLIENT_SOFTWARE_FROM and not _is_well_formed(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _of_this_broker(ctx.api_version)


@cache
def _of_this_broker(version: int) -> ApiVersionsResponse:
    """Made once: every client asks for it with every connection, before its login. Nobody changes it."""
    # Imported here, since the list holds this handler too.
    from millrace.broker.handlers import APIS

    return api_versions_response(APIS, version)


def api_versions_response(apis: Iterable[Api], version: int = FEATURES_FROM_ZERO) -> ApiVersionsResponse:
    """All APIs with their versions, and the features, which only versions 3 and up can carry."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=api.key,
                min_version=api.versions[0] if api.advertised_from is None else api.advertised_from,
                max_version=api.versions[1],
            )
            for api in apis
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, lowest, highest in FEATURES
            if lowest > 0 or version >= FEATURES_FROM_ZERO
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, _, level in FEATURES
        ],
    )


def answer_unserved(apis: Iterable[Api]) -> bytes:
    """The answer to a version that is not served: those that are, in the oldest form, which every client
    understands."""
    response = api_versions_response(apis)
    response.error_code = ErrorCode.UNSUPPORTED_VERSION
    return schema.response_encoder(ApiKey.API_VERSIONS, 0)(response)


def _is_well_formed(request: ApiVersionsRequest) -> bool:
    return (
        _CLIENT_SOFTWARE.fullmatch(request.client_software_name) is not None
        and _CLIENT_SOFTWARE.fullmatch(request.client_software_version) is not None
    )


# v3 says which client asks and names features; v4 is v3 with features that may start at 0.
API_VERSIONS: Final = Api(
    ApiKey.API_VERSIONS, versions=(0, 4), handle=api_versions, checks=NONE, answer_unserved=answer_unserved
)
