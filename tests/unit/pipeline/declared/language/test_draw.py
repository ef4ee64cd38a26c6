"""The graph of a pipeline in text and in SVG, and the commands that need no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from click.testing import CliRunner

from millrace.cli.main import CLI
from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.language.draw import draw_html, draw_svg, draw_text
from millrace.pipeline.declared.run.state import state_directory

EXAMPLE = Path(__file__).parents[5] / "examples" / "pipelines" / "orders.yaml"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(CLI, ["pipeline", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.output


def test_the_tree_leads_from_each_sink_to_its_sources() -> None:
    text = draw_text(load(EXAMPLE, environment={})[0])
    assert "[revenue]  topic revenue, json, key country, exactly-once, append, every 5 s" in text
    assert "   │  └─ (orders)  topic orders, json, dead letters to orders-unreadable" in text
    assert "└─ known_orders  as above" in text


def test_the_picture_is_svg_with_a_box_for_each_part_and_an_arrow_for_each_reading() -> None:
    pipeline = load(EXAMPLE, environment={})[0]
    picture = ET.fromstring(draw_svg(pipeline))
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}g")) == 2 + 3 + 2
    assert len(picture.findall(f"{name}path")) == 6
    assert "GROUP BY window(at" in draw_html(pipeline)


def test_text_from_the_file_cannot_break_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        'pipeline: p\nsources: {a: {pattern: "<script>&.*"}}\nsinks: {s: {from: a, topic: t, format: raw}}\n'
    )
    picture = draw_svg(load(path)[0])
    assert "<script>" not in picture
    ET.fromstring(picture)


def test_explain_draws_to_the_terminal_or_a_file(tmp_path: Path) -> None:
    code, output = invoke("explain", str(EXAMPLE))
    assert code == 0
    assert "(customers)  csv files data/customers.csv" in output
    for name in ("graph.svg", "graph.html"):
        assert invoke("explain", str(EXAMPLE), "--output", str(tmp_path / name))[0] == 0
        assert "<svg" in (tmp_path / name).read_text()


def test_validate_counts_what_it_found_or_lists_the_mistakes(tmp_path: Path) -> None:
    assert invoke("validate", str(EXAMPLE)) == (
        0,
        f"{EXAMPLE}: orders is fine: 2 sources, 3 steps, 2 sinks\n",
    )
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: p\nsauces: {}\n")
    code, output = invoke("validate", str(path), "--json")
    assert code == 1
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert (found[0]["line"], found[0]["kind"]) == (1, "mistake")
    assert any(each["meant"] == "sources" for each in found)


def test_status_and_stop_of_what_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: p\n")
    code, output = invoke("status", str(path))
    assert (code, "p: has never run here" in output) == (1, True)
    code, output = invoke("stop", str(path))
    assert (code, output) == (0, "p: does not run\n")


def test_status_shows_the_last_figures(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: p\n")
    state = state_directory(path, "p")
    query = {"name": "out", "state": "running", "batch": 7, "rows": 12345, "rows_per_second": 999.4}
    query |= {"lag": 5000, "left_s": 65.0}
    document = {"pipeline": "p", "state": "running", "pid": 4, "began": "b", "updated": "u", "error": None}
    with state.held("p"):
        state.write_status(document | {"queries": [query]})
        code, output = invoke("status", str(path))
        assert code == 0
        assert "p: running as process 4" in output
        assert "out    running      7  12,345     999  5,000  1 min 5 s" in output
        assert json.loads(invoke("status", str(path), "--json")[1])["queries"] == [query]
    assert "p: died" in invoke("status", "--state-dir", str(tmp_path / ".millrace"))[1]
