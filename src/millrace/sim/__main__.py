"""`python -m millrace.sim`: runs scenarios from seeds, reports how much was simulated and how fast, and for a
seed that fails the command that replays it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from millrace.broker import logs
from millrace.sim.cluster_scenarios import CLUSTER_SCENARIOS
from millrace.sim.playing import Named
from millrace.sim.run import Outcome, run_scenario
from millrace.sim.scenarios import BY_NAME, SCENARIOS, SECONDS

SHOWN_MAX: Final = 10
RANDOM: Final = "random"
GROUPS: Final = {"all": [*SCENARIOS, *CLUSTER_SCENARIOS], "single": SCENARIOS, "cluster": CLUSTER_SCENARIOS}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.log:
        logs.set_up("info", "text")
    chosen = GROUPS.get(options.scenario) or [BY_NAME[options.scenario]]
    started = time.perf_counter()  # noqa: TID251 - how fast the simulation is
    simulated_s = 0.0
    failed: list[tuple[Named, Outcome]] = []
    runs = 0
    for seed in options.seeds:
        for scenario in chosen:
            before = time.perf_counter()  # noqa: TID251
            outcome = run_scenario(seed, scenario.play, scenario.plan, seconds=options.seconds)
            took = time.perf_counter() - before  # noqa: TID251
            runs += 1
            simulated_s += outcome.simulated_s
            _report(scenario, outcome, took, quiet=options.quiet)
            if outcome.violations:
                failed.append((scenario, outcome))
                _explain(scenario, outcome, options.seconds)
    took = time.perf_counter() - started  # noqa: TID251
    # On a machine that does other things as well, only the second figure can be compared.
    used = time.process_time()
    _say(
        f"{runs} runs, {simulated_s / 3600:.2f} simulated hours in {took:.0f} s, "
        f"{simulated_s / max(took, 0.001):.0f} times as fast as real time "
        f"({simulated_s / max(used, 0.001):.0f} by the CPU time used), {len(failed)} failed"
    )
    return 1 if failed else 0


def _report(scenario: Named, outcome: Outcome, took: float, *, quiet: bool) -> None:
    if quiet and not outcome.violations:
        return
    _say(
        f"{'FAIL' if outcome.violations else 'ok'}  seed {outcome.seed}  {scenario.name}  "
        f"{outcome.simulated_s:.0f} s  {outcome.simulated_s / max(took, 0.001):.0f}x  "
        f"{outcome.events} events  {outcome.digest[:16]}"
    )


def _explain(scenario: Named, outcome: Outcome, seconds: float) -> None:
    for violation in outcome.violations[:SHOWN_MAX]:
        _say(f"      {violation}")
    if len(outcome.violations) > SHOWN_MAX:
        _say(f"      and {len(outcome.violations) - SHOWN_MAX} more")
    _say(
        f"      again: python -m millrace.sim --seeds {outcome.seed} --scenario {scenario.name} "
        f"--hours {seconds / 3600:g} --log"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m millrace.sim", description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default=range(1, 11), metavar="A-B", help="seeds, as 1-100 or 7"
    )
    parser.add_argument(
        "--scenario",
        default=RANDOM,
        help=f"one of {', '.join(BY_NAME)}, or {', '.join(GROUPS)} (default: {RANDOM})",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=SECONDS / 3600,
        help="how long faults go on in each run (default: a minute)",
    )
    parser.add_argument("--quiet", action="store_true", help="report failures and the sum only")
    parser.add_argument("--log", action="store_true", help="show what happens, and what the brokers log")
    options = parser.parse_args(arguments)
    if options.scenario not in GROUPS and options.scenario not in BY_NAME:
        known = ", ".join((*BY_NAME, *GROUPS))
        parser.error(f"there is no scenario {options.scenario}; there are: {known}")
    if options.hours <= 0:
        parser.error(f"--hours {options.hours:g}: must be more than 0")
    options.seconds = options.hours * 3600
    return options


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        _refuse(text)
    if not seeds:
        _refuse(text)
    return seeds


def _refuse(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds: give one as 7, or several as 1-100")


if __name__ == "__main__":
    sys.exit(main())
