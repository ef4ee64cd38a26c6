"""The one place where administrative requests pass: each is told to the audit with its results, whoever sent
it and whatever came of it. While the audit is closed because it cannot be written, they are refused, in the
shape of their API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from millrace.broker.handlers.administrative.shapes import ADMINISTRATIVE, Shape
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.security.audit.auditor import Auditor
from millrace.security.audit.events import Result

UNKNOWN_OUTCOME = "UNKNOWN"
"""What is told of a request that ended before its answer was there: it may have been carried out."""


def told(api: Api) -> Api:
    """The same API; if it is administrative, one whose requests are told."""
    shape = ADMINISTRATIVE.get(api.key)
    if shape is None:
        return api
    return replace(api, handle=_telling(api.handle, api.name, shape))


def _telling(handle: Callable[..., Any], name: str, shape: Shape) -> Callable[..., Any]:
    def tells(ctx: RequestContext, request: Any) -> Any:
        auditor = ctx.services.access.auditor
        if auditor is None:
            return handle(ctx, request)
        refusal = auditor.refusal()
        if refusal is not None:
            auditor.count_refused()
            return shape.refused(request, error_code(refusal), str(refusal))
        return answer(auditor, ctx, request)

    async def answer(auditor: Auditor, ctx: RequestContext, request: Any) -> Any:
        # Who asked, even if the connection is somebody else's by the time of the answer.
        identity, host, client_id = ctx.decisions.identity, ctx.endpoint.peer_host, ctx.client_id or ""
        results = [Result("Request", name, UNKNOWN_OUTCOME)]
        try:
            response = handle(ctx, request)
            if isawaitable(response):
                response = await response
            results = list(shape.results(request, response))
        finally:
            auditor.acted(identity, host, client_id, name, results)
        return response

    return tells
