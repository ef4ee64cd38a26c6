"""Writes what the audit has to tell: into a file, and into the topic `__audit`."""
