"""Exported folders: a real kernel written, read back, and run in a process that has no TVM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_programs

import tilewright
from search_space.candidate import Candidate
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.export import NothingToExport, describe_artifact, export_schedules
from tilewright.runtime import ArtifactError
from workers.build import build_lowered

WORKLOAD = parse_workload({"op": "gemm", "m": 6, "n": 10, "k": 7, "dtype": "float32"})
ROOT = Path(__file__).parents[2]


class Service:
    """The answers of a service that tuned one shape."""

    def __init__(self, blob, digest, schedule="sch_1"):
        self.blob = blob
        self.detail = {
            "schedule": {"id": "sch_1", "workload": WORKLOAD.to_json(), "target": {"kind": "cpu"}, "artifact": digest},
            "served": {"kind": "tilewright"},
            "environment": {"model": "this"},
            "latency_s": 1e-6,
        }
        self.tasks = [{"schedule_id": schedule}, {"schedule_id": None}]

    def job(self, job_id):
        return {"id": job_id, "tasks": self.tasks}

    def schedule(self, schedule_id):
        assert schedule_id == "sch_1"
        return self.detail

    def artifact(self, schedule_id):
        assert schedule_id == "sch_1"
        return self.blob


@pytest.fixture(scope="module")
def artifact():
    import tvm

    target = Target("cpu", str(tvm.target.codegen.llvm_get_system_cpu()), "this", 2, 256)
    return build_lowered(tiny_programs.gemm(6, 10, 7), WORKLOAD, target, Candidate.of("by_hand", 1, {}))


FRESH = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, tilewright
kernel = tilewright.load(sys.argv[2])
a, b = np.arange(42, dtype=np.float32).reshape(6, 7), np.ones((7, 10), np.float32)
assert np.array_equal(kernel(a, b), a @ b)
assert not {"tvm", "torch", "ray"} & set(sys.modules)
"""


@pytest.mark.parametrize("selection", [{"schedule_id": "sch_1"}, {"job_id": "job_1"}])
def test_export_and_load_back(artifact, tmp_path, selection):
    service = Service(artifact.to_bytes(), artifact.digest)
    folder, index = export_schedules(service, tmp_path / "out", **selection)
    assert folder.name == f"gemm-m6-n10-k7-float32-{artifact.digest[:8]}"
    names = {p.name for p in folder.iterdir()}
    assert names == {"kernel.tilewright", "kernel.so", "kernel.tir.py", "kernel.s", "schedule.json"}
    (entry,) = json.loads(index.read_text())["schedules"]
    assert entry["workload"] == WORKLOAD.to_json()
    assert entry["served"] == "tilewright"
    assert tilewright.load((tmp_path / "out") / entry["file"], digest=entry["artifact"]).digest == artifact.digest
    assert "T.parallel(6)" in (folder / "kernel.tir.py").read_text()
    assert json.loads((folder / "schedule.json").read_text())["manifest"]["candidate"]["sketch"] == "by_hand"
    for path in (folder, tmp_path / "out", folder / "kernel.tilewright"):
        done = subprocess.run(
            [sys.executable, "-c", FRESH, str(ROOT), str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_what_cannot_be_exported(artifact, tmp_path):
    service = Service(artifact.to_bytes(), artifact.digest, schedule=None)
    with pytest.raises(NothingToExport, match="job_1 has no promoted schedule"):
        list(export_schedules(service, tmp_path / "out", job_id="job_1"))
    with pytest.raises(ValueError, match="either"):
        list(export_schedules(service, tmp_path / "out"))
    damaged = Service(artifact.to_bytes()[:-1], artifact.digest)
    with pytest.raises(ArtifactError, match="damaged"):
        list(export_schedules(damaged, tmp_path / "out", schedule_id="sch_1"))
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_damaged_file_is_refused_with_what_to_do(artifact, tmp_path):
    service = Service(artifact.to_bytes(), artifact.digest)
    folder, _ = export_schedules(service, tmp_path, schedule_id="sch_1")
    path = folder / "kernel.tilewright"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"damaged artifact .*: re-export it with `tilewright export`"):
        tilewright.load(folder)


def test_describe(artifact):
    text = describe_artifact(artifact.to_bytes())
    assert "# candidate: " in text
    assert "T.parallel(6)" in text
    assert "__tvm_ffi_main" in text
    assert "__tvm_ffi_main" not in describe_artifact(artifact.to_bytes(), assembly=False)
