"""A real service on a machine where no C compiler is on PATH: the job fails and says why (cases O10)."""

import os
import re
from pathlib import Path

import pytest

from tests.support.running_service import RunningService, run_tilewright
from tilewright.client import ApiError

GEMM = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "float32"}
COMPILER = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|tcc|c89|c99|cpp|ld)([-.].*)?")


def path_without_compilers(folder: Path) -> str:
    """A folder of links to every program on PATH but compilers and linkers."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.slow
def test_a_job_without_a_compiler_fails_with_the_first_error_and_the_counts(tmp_path: Path) -> None:
    environment = {"PATH": path_without_compilers(tmp_path / "bin")}
    with RunningService(tmp_path, None, environment=environment) as service:
        ready = service.client.get("/health/ready")
        job = service.finished(service.submit(workload=GEMM, max_trials=16), 240.0)
        assert (job["state"], job["stop_reason"]) == ("failed", "no_valid_candidate")
        assert "no C compiler" in job["error"]["message"]
        assert "apt-get install" in job["error"]["message"]
        assert "16 BUILD_ERROR" in job["error"]["message"]
        assert job["trials"] == {"done": 16, "ok": 0, "failed_by": {"BUILD_ERROR": 16}}
        with pytest.raises(ApiError) as none:
            service.client.best(GEMM, target="cpu")
        assert none.value.status == 404
        page = service.client._send("GET", f"/jobs/{job['id']}", headers={"Accept": "text/html"}).text
        assert "no C compiler" in page
        told = run_tilewright(service, "doctor")
        assert told.returncode == 1
        assert "C compiler" in told.stdout
        assert ready["status"] == "ready"
