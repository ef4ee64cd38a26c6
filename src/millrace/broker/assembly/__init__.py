"""Builds the parts of a broker, one module for each subsystem. `app` joins them, starts them in order and
stops them in order; nothing else builds what lasts as long as the broker.

A part is whole when it is built: it gets what it needs in its constructor, or subscribes to what was there
before it. Settings reach it as values; `part_settings` alone knows their names.
"""
