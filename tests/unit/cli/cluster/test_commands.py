"""`millrace cluster` touches nothing but what it has made."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from millrace.cli.cluster.commands import cluster
from millrace.cli.cluster.local_cluster import LocalCluster, plan_nodes


def a_cluster_that_is_down(directory: Path) -> None:
    nodes = plan_nodes(2, base_port=20_000, workers_per_host=1)
    LocalCluster(directory=directory, base_port=20_000, nodes=nodes).save()
    for name in ("etcd", "broker-1", "broker-2"):
        (directory / name).mkdir()
        (directory / name / "data").write_text("x")
        (directory / f"{name}.out").write_text("x")


def test_down_deletes_the_clusters_data_and_leaves_what_else_is_there(tmp_path: Path) -> None:
    """The directory is the user's choice: it may be one with other things in it."""
    a_cluster_that_is_down(tmp_path)
    other = tmp_path / "thesis.txt"
    other.write_text("not ours")
    result = CliRunner().invoke(cluster, ["down", "-d", str(tmp_path), "--delete-data"])
    assert result.exit_code == 0, result.output
    assert list(tmp_path.iterdir()) == [other]


def test_down_deletes_a_directory_that_has_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "millrace-cluster"
    directory.mkdir()
    a_cluster_that_is_down(directory)
    result = CliRunner().invoke(cluster, ["down", "-d", str(directory), "--delete-data"])
    assert result.exit_code == 0, result.output
    assert not directory.exists()


def test_settings_given_to_a_running_cluster_are_kept_for_the_next_start(tmp_path: Path) -> None:
    a_cluster_that_is_down(tmp_path)
    local = LocalCluster.load(tmp_path)
    assert local.set({"num.partitions": "3"}) is True
    assert LocalCluster.load(tmp_path).settings == {"num.partitions": "3"}
    assert local.set({"num.partitions": "3"}) is False
