"""Millrace and Apache Kafka measured side by side; `python -m benchmarks --help` says how."""
