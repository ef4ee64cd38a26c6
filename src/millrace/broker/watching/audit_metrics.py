"""Figures of the audit; none where there is no audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.broker.watching.metrics import PlainFigures
    from millrace.security.audit.auditor import Auditor


def audit_gauges(auditor: Auditor | None) -> PlainFigures:
    if auditor is None:
        return {}
    waiting = {
        f"millrace_audit_{outbox.name}_waiting": (
            f"Events of the audit that wait to be written to its {outbox.name}.",
            len(outbox),
        )
        for outbox in auditor.outboxes
    }
    return {
        **waiting,
        "millrace_audit_refusing": (
            "1 while logins and administrative requests are refused because the audit cannot be written.",
            float(auditor.refusal() is not None),
        ),
    }


def audit_counters(auditor: Auditor | None) -> PlainFigures:
    if auditor is None:
        return {}
    figures = {
        "millrace_audit_events": ("Events of the audit.", auditor.told),
        "millrace_audit_folded": (
            "Repeats that the audit counted and did not tell one by one.",
            auditor.folded,
        ),
        "millrace_audit_refused": (
            "Logins and administrative requests that were refused because the audit could not be written.",
            auditor.refused,
        ),
    }
    for outbox in auditor.outboxes:
        place = outbox.name
        figures[f"millrace_audit_{place}_written"] = (
            f"Events written to the audit's {place}.",
            outbox.written,
        )
        figures[f"millrace_audit_{place}_lost"] = (
            f"Events that were not written to the audit's {place}, for lack of room in the queue.",
            outbox.lost,
        )
        figures[f"millrace_audit_{place}_failures"] = (
            f"Failed attempts to write to the audit's {place}.",
            outbox.failures,
        )
    return figures
