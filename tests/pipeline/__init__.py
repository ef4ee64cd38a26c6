"""Pipelines on a real Spark against a real broker."""
