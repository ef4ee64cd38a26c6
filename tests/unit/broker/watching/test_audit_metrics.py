"""The audit as Prometheus reads it."""

from __future__ import annotations

from millrace.broker.watching.audit_metrics import audit_counters, audit_gauges
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import Activity
from millrace.security.audit.outbox import Outbox
from tests.unit.security.audit.samples import auditor_with


def test_without_an_audit_there_are_no_figures() -> None:
    assert audit_gauges(None) == {}
    assert audit_counters(None) == {}


def test_what_was_told_lost_and_written() -> None:
    file, topic = Outbox("file", 2), Outbox("topic", 9)
    auditor = auditor_with([file, topic], policy=AuditPolicy(is_closed=True))
    for _ in range(3):
        auditor.lives(Activity.START, "begins")
    topic.took(2, 0.0)
    topic.failed()
    auditor.count_refused()
    assert {name: value for name, (_, value) in audit_gauges(auditor).items()} == {
        "millrace_audit_file_waiting": 2,
        "millrace_audit_topic_waiting": 1,
        "millrace_audit_refusing": 1,
    }
    assert {name: value for name, (_, value) in audit_counters(auditor).items()} == {
        "millrace_audit_events": 3,
        "millrace_audit_folded": 0,
        "millrace_audit_refused": 1,
        "millrace_audit_file_written": 0,
        "millrace_audit_file_lost": 1,
        "millrace_audit_file_failures": 0,
        "millrace_audit_topic_written": 2,
        "millrace_audit_topic_lost": 0,
        "millrace_audit_topic_failures": 1,
    }
