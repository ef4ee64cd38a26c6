"""Load generators, each a process of its own: JSON in (argument), JSON out (last line of standard output).

They are processes of their own, so that a generator's CPU time is known and the runner's work is not in the
figures.
"""
