"""Load generators, each a process of its own: JSON in (argument), JSON out (last line of standard output).

Own processes, so that a generator's CPU time is known and the orchestrator's work is not in the figures.
"""
