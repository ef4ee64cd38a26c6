"""Archives of topics in Delta tables, replay from them, and one view over archive and live topic."""
