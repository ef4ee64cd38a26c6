"""Ready-made pipelines that measure topics: rates, sizes, latency, keys, lag; a Delta table and reports."""
