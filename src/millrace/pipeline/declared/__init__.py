"""Pipelines declared in one YAML or SQL file: parsed and checked without Spark, then run on it."""
