"""`make demo-pipeline`: a broker, generated orders, a pipeline, an archive, a report; ends by itself.

Everything happens through the `millrace` command, as users would do it; each command is shown before it runs.
What comes out is compared with what was sent: the demo fails if a single order is lost or counted twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

ROOT: Final = Path(__file__).resolve().parent.parent
MILLRACE: Final = Path(sys.executable).with_name("millrace")
PIPELINE: Final = ROOT / "examples" / "pipelines" / "demo_orders.yaml"
COUNTRIES: Final = ("AT", "BR", "CA", "DE", "FR", "IN", "JP", "KE", "NO", "US")
CUSTOMERS: Final = 2_000
# One customer in the generated data orders far more than the others: the report shows its partition as hot.
BUSY_CUSTOMER_SHARE: Final = 0.35
TWICE_SHARE: Final = 0.01
UNREADABLE: Final = 25
PARTITIONS: Final = 6
MINUTES: Final = 60
FIRST_ORDER: Final = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)
WATCH_S: Final = 15
MARK: Final = ".demo-pipeline"
START_TIMEOUT_S: Final = 60.0
COMMAND_TIMEOUT_S: Final = 600.0


@dataclass(slots=True)
class Sent:
    """What the demo has sent, as the pipeline must find it."""

    orders: int = 0
    twice: int = 0
    last_at_s: float = 0.0
    windows: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))


def main() -> int:
    arguments = _arguments()
    directory: Path = arguments.directory.resolve()
    _prepare(directory)
    began = time.monotonic()
    with _broker(directory) as bootstrap:
        environment = dict(os.environ) | {"MILLRACE_BOOTSTRAP": bootstrap, "DEMO_DIR": str(directory)}
        problems = _show(_Runner(environment), bootstrap, directory, arguments.orders)
    _title(f"Done in {time.monotonic() - began:.0f} s; all of it is in {_shown(str(directory))}")
    print(f"report: {_shown(str(directory / 'report.html'))} and {_shown(str(directory / 'report.png'))}")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def _show(run: _Runner, bootstrap: str, directory: Path, orders: int) -> list[str]:
    """Run all steps in order, and return what differs from what was sent."""
    chance = random.Random(6)
    countries = [chance.choice(COUNTRIES) for _ in range(CUSTOMERS)]
    _write_customers(directory / "customers.csv", countries)
    sent, first = Sent(), orders * 2 // 3
    place, pipeline = shlex.quote(str(directory)), shlex.quote(str(PIPELINE))
    _title("Topics")
    run(f"topic create orders --partitions {PARTITIONS} --config message.timestamp.type=LogAppendTime")
    run("topic create revenue orders-unreadable --partitions 2")
    _title(f"{first:,} of {orders:,} orders, some of them twice, and {UNREADABLE} unreadable ones")
    _send(bootstrap, chance, countries, sent, 0, first, orders)
    _title("The pipeline, from its file: join, deduplicate, window, exactly-once sink")
    run(f"pipeline validate {pipeline}")
    run(f"pipeline explain {pipeline}")
    run(f"pipeline run {pipeline} --once --state-dir {place}/state")
    _title("The rest of the orders, and the same pipeline again: it goes on where it was")
    _send(bootstrap, chance, countries, sent, first, orders, orders)
    run(f"pipeline run {pipeline} --once --state-dir {place}/state")
    _title("The topic in the archive, as a Delta table")
    run(f"pipeline archive orders --to {place}/archive --once")
    _title("What came out")
    problems = _judge(_read_revenue(bootstrap), sent)
    _title("Measured, while a few more orders come in and a consumer group catches up")
    reports = f"--report {place}/report.html --report {place}/report.png"
    with _traffic(bootstrap, orders // WATCH_S):
        run(
            f"pipeline analytics orders revenue --into {place}/analytics --latency-header sent-at"
            f" --watch {WATCH_S}s {reports}"
        )
    _title("And for a million of such orders a second, kept for a week")
    run("pipeline capacity --messages 1M --size 100 --retention 7d --compression 2")
    return problems


def _prepare(directory: Path) -> None:
    """Make an empty directory; empty it only if an earlier demo filled it."""
    mark = directory / MARK
    if directory.exists() and any(directory.iterdir()) and not mark.exists():
        raise SystemExit(f"{directory} is not empty, and not from an earlier demo: name another --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    mark.touch()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Show a pipeline at work, from broker to report.")
    parser.add_argument("--orders", type=int, default=300_000, help="how many orders to send")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".cache" / "demo-pipeline", help="what to use and fill"
    )
    return parser.parse_args()


class _Runner:
    """Runs `millrace` commands, each shown first; a failure ends the demo."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def __call__(self, line: str) -> None:
        words = shlex.split(line)
        shown = f"millrace {shlex.join(_shown(word) for word in words)}"
        print(f"$ {shown}", flush=True)
        command = [str(MILLRACE), *words]
        answer = subprocess.run(command, env=self._environment, timeout=COMMAND_TIMEOUT_S, check=False)
        if answer.returncode != 0:
            raise SystemExit(f"{shown} ended with {answer.returncode}")


@contextmanager
def _broker(directory: Path) -> Iterator[str]:
    """A broker on a free port, stopped in order at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    bootstrap = f"127.0.0.1:{port}"
    command = [str(MILLRACE), "serve", "--data-dir", str(directory / "data"), "--listen", bootstrap]
    command += ["--set", "metrics.listener=127.0.0.1:0"]
    _title(f"A broker on {bootstrap}")
    with (directory / "broker.log").open("wb") as log:
        # The broker gets a session of its own: Ctrl-C ends the demo, which then stops the broker in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_listening(process, port, directory / "broker.log")
        yield bootstrap
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"the broker did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _write_customers(path: Path, countries: list[str]) -> None:
    lines = [f"{number},customer {number},{country}\n" for number, country in enumerate(countries)]
    path.write_text("customer_id,name,country\n" + "".join(lines))


def _send(
    bootstrap: str,
    chance: random.Random,
    countries: list[str],
    sent: Sent,
    first: int,
    last: int,
    total: int,
) -> None:
    """Send orders `first` to `last` of `total`, spread over an hour of their own time."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    began = time.monotonic()
    for number in range(first, last):
        customer = 0 if chance.random() < BUSY_CUSTOMER_SHARE else chance.randrange(CUSTOMERS)
        cents = chance.randrange(100, 50_000)
        at_s = FIRST_ORDER.timestamp() + number * MINUTES * 60 / total
        at = datetime.fromtimestamp(at_s, UTC)
        value = json.dumps(
            {
                "order_id": number,
                "customer_id": customer,
                "cents": cents,
                "at": at.isoformat(timespec="milliseconds"),
            }
        )
        copies = 1 + (chance.random() < TWICE_SHARE)
        for _ in range(copies):
            _produce(producer, str(customer), value)
        window = sent.windows[at.strftime("%Y-%m-%dT%H:%M"), countries[customer]]
        window[0] += 1
        window[1] += cents
        sent.orders += 1
        sent.twice += copies - 1
        sent.last_at_s = at_s
    if first == 0:
        for number in range(UNREADABLE):
            _produce(producer, "0", f'{{"order_id": {number}, "cents": ')
    left = producer.flush(120)
    if left:
        raise SystemExit(f"{left} messages could not be sent")
    seconds = time.monotonic() - began
    print(f"sent {last - first:,} orders in {seconds:.1f} s", flush=True)


def _produce(producer: Producer, key: str, value: str) -> None:
    while True:
        headers: dict[str, str | bytes | None] = {"sent-at": str(time.time_ns() // 1_000_000)}
        try:
            producer.produce("orders", value=value, key=key, headers=headers)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _read_all(bootstrap: str, topic: str) -> Iterator[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1]
        for number in partitions
    }
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            yield message
        # Positions pass over markers of transactions, which are no messages.
        positions = consumer.position([TopicPartition(topic, number) for number in partitions])
        if message is None and all(
            each.offset >= ends[each.partition] for each in positions if ends[each.partition]
        ):
            break
    consumer.close()


def _read_revenue(bootstrap: str) -> list[dict[str, Any]]:
    return [json.loads(message.value()) for message in _read_all(bootstrap, "revenue")]


def _judge(rows: list[dict[str, Any]], sent: Sent) -> list[str]:
    """Show the largest windows, and compare all that are closed with what was sent."""
    largest = sorted(rows, key=lambda row: -row["cents"])[:8]
    print(f"{'minute':<18}{'country':<9}{'orders':>8}{'revenue':>14}")
    for row in largest:
        print(f"{row['minute'][:16]:<18}{row['country']:<9}{row['orders']:>8,}{row['cents'] / 100:>14,.2f}")
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        found[row["minute"][:16], row["country"]].append((row["orders"], row["cents"]))
    # A window is closed when the latest order is a minute past its end.
    closed_at = datetime.fromtimestamp(sent.last_at_s - 120, UTC).strftime("%Y-%m-%dT%H:%M")
    wanted = {key: (each[0], each[1]) for key, each in sent.windows.items() if key[0] <= closed_at}
    problems = [f"{key} came {len(values)} times" for key, values in found.items() if len(values) > 1]
    problems += [f"{key} is missing" for key in wanted if key not in found]
    problems += [
        f"{key}: {values[0]} instead of {tuple(sent.windows[key])}"
        for key, values in found.items()
        if values[0] != tuple(sent.windows[key])
    ]
    counted = sum(values[0][0] for values in found.values())
    print(
        f"{len(found):,} windows with {counted:,} orders; {sent.twice:,} were sent twice and counted once;"
        f" {'sums equal what was sent' if not problems else f'{len(problems)} differ'}"
    )
    return problems[:10]


@contextmanager
def _traffic(bootstrap: str, per_s: int) -> Iterator[None]:
    """New orders and a consumer group that catches up with all of them, for the report to show."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_trickle, args=(bootstrap, stop)),
        threading.Thread(target=_bill, args=(bootstrap, per_s, stop)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _trickle(bootstrap: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    number = 0
    while not stop.wait(0.05):
        for _ in range(25):
            number += 1
            _produce(
                producer,
                str(number % CUSTOMERS),
                json.dumps({"order_id": -number, "note": "x" * (number % 80)}),
            )
    producer.flush(30)


def _bill(bootstrap: str, per_s: int, stop: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    while not stop.wait(0.5):
        if consumer.consume(per_s // 2, 1.0):
            consumer.commit(asynchronous=False)
    consumer.close()


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _shown(word: str) -> str:
    """A path below this folder as one would type it here."""
    return os.path.relpath(word) if word.startswith(str(Path.cwd())) else word


if __name__ == "__main__":
    sys.exit(main())
