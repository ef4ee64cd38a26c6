"""Settings of topics, brokers and loggers: reading them, changing them, listing what has them."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.configs.alter import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from millrace.broker.handlers.configs.describe import DESCRIBE_CONFIGS
from millrace.broker.handlers.configs.resources import LIST_CONFIG_RESOURCES

__all__: Final = ["ALTER_CONFIGS", "DESCRIBE_CONFIGS", "INCREMENTAL_ALTER_CONFIGS", "LIST_CONFIG_RESOURCES"]
