"""`millrace cluster` touches nothing but what it has made."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from millrace.cli.cluster.commands import cluster
from millrace.cli.cluster.local_cluster import LocalCluster, plan_nodes
from millrace.client.security import PLAINTEXT


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


def test_a_secured_cluster_has_its_secrets_in_files_of_its_own_and_none_among_arguments(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "cluster"
    nodes = plan_nodes(2, base_port=20_000, workers_per_host=1)
    local = LocalCluster(directory=directory, base_port=20_000, nodes=nodes, is_secured=True)
    local.make_security()
    local.save()
    found = LocalCluster.load(directory)
    assert found.is_secured
    security = found.security()
    assert (security.protocol, security.username) == ("SASL_SSL", "admin")
    assert security.password is not None
    words = found._command(nodes[1])
    assert "listeners=SASL_SSL://127.0.0.1:20001" in words
    assert "--listen" not in words
    assert not any(security.password in word or "jaas" in word for word in words)
    servers = (found.security_folder / "client.properties").read_text()
    assert "bootstrap.servers=127.0.0.1:20000,127.0.0.1:20001\n" in servers
    settings = (found.security_folder / "broker.toml").read_text()
    assert "required username=" in settings
    assert (found.security_folder / "broker.toml").stat().st_mode & 0o077 == 0
    result = CliRunner().invoke(cluster, ["down", "-d", str(directory), "--delete-data"])
    assert result.exit_code == 0, result.output
    assert not directory.exists()


def test_a_cluster_without_security_is_reached_plainly(tmp_path: Path) -> None:
    a_cluster_that_is_down(tmp_path)
    local = LocalCluster.load(tmp_path)
    assert local.security() is PLAINTEXT
    assert "--listen" in local._command(local.nodes[0])
