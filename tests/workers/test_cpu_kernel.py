"""The loaded kernel as its user meets it: clear refusals, threads, concurrency, and no TVM in the process."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tiny_programs
import torch

import tilewright
from search_space.candidate import Candidate
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.runtime import ArtifactError
from workers.build import build_lowered

M, N, K = 40, 64, 48
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def artifact():
    import tvm

    target = Target("cpu", str(tvm.target.codegen.llvm_get_system_cpu()), "this", 2, 256)
    workload = parse_workload({"op": "gemm", "m": M, "n": N, "k": K, "dtype": "float32"})
    return build_lowered(tiny_programs.gemm(M, N, K), workload, target, Candidate.of("by_hand", 1, {}))


@pytest.fixture
def kernel(artifact):
    return tilewright.load(artifact.to_bytes())


A, B = torch.randn(M, K), torch.randn(K, N)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((A,), TypeError, r"inputs: expected 2 \(a, b\), got 1"),
        ((A, B.double()), TypeError, "b: expected dtype float32, got float64"),
        ((A.numpy(), B.double().numpy()), TypeError, "b: expected dtype float32, got float64"),
        ((A, B[:-1]), ValueError, r"b: expected shape \[48, 64\], got \[47, 64\]"),
        ((A.numpy()[:3], B), ValueError, r"a: expected shape \[40, 48\], got \[3, 48\]"),
        ((A.t().contiguous().t(), B), ValueError, "a: must be contiguous"),
        ((np.asfortranarray(A.numpy()), B), ValueError, "a: must be contiguous"),
        ((A, B.to("meta")), ValueError, "b: is on meta, the kernel runs on cpu"),
        ((A, B.clone().requires_grad_()), ValueError, "b: requires grad"),
        ((A, "B"), TypeError, "b: expected a cpu tensor, got str"),
        ((A, None), TypeError, "b: expected a cpu tensor, got NoneType"),
    ],
)
def test_refusals_name_the_operand(kernel, inputs, error, message):
    with pytest.raises(error, match=message):
        kernel(*inputs)


def test_grad_is_allowed_where_none_is_recorded(kernel):
    with torch.no_grad():
        assert torch.allclose(kernel(A, B.clone().requires_grad_()), A @ B, atol=1e-4)


def test_out(kernel):
    out = torch.full((M, N), float("nan"))
    assert kernel(A, B, out=out) is out
    assert torch.allclose(out, A @ B, atol=1e-4)
    with pytest.raises(ValueError, match=r"c: expected shape \[40, 64\]"):
        kernel(A, B, out=out[1:])
    with pytest.raises(TypeError, match=r"out: expected 1 \(c\), got 2"):
        kernel(A, B, out=(out, out))
    store = torch.zeros(M * K + M * N)
    with pytest.raises(ValueError, match="c: out overlaps a"):
        kernel(store[: M * K].view(M, K), B, out=store[M * K - 1 : -1].view(M, N))
    frozen = out.numpy().copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernel(A, B, out=frozen)


def test_launcher_is_bound_once(kernel):
    a, out = A.clone(), torch.zeros(M, N)
    launch = kernel.launcher([a, B], [out])
    launch()
    first = out.clone()
    a *= 2
    launch()
    assert torch.equal(out, 2 * first)
    with pytest.raises(TypeError, match="outputs"):
        kernel.launcher([a, B], [])


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_any_number_of_threads_gives_the_same(kernel, threads):
    kernel.set_threads(threads)
    assert torch.allclose(kernel(A, B), A @ B, atol=1e-4)


def test_threads_must_be_positive(kernel):
    with pytest.raises(ValueError, match="threads"):
        kernel.set_threads(0)


def test_calls_from_many_threads_at_once(artifact):
    kernels = [tilewright.load(artifact.to_bytes()) for _ in range(2)]
    wrong = []

    def work(seed):
        rng = torch.Generator().manual_seed(seed)
        for i in range(40):
            a, b = torch.randn(M, K, generator=rng), torch.randn(K, N, generator=rng)
            if not torch.allclose(kernels[i % 2](a, b), a @ b, atol=1e-4):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


FRESH = """
import sys
import tilewright
heavy = {"torch", "numpy", "tvm", "tvm_ffi", "ray", "httpx"} & set(sys.modules)
assert not heavy, heavy
kernel = tilewright.load(sys.argv[1])
import numpy as np
rng = np.random.default_rng(0)
a, b = rng.standard_normal((40, 48), np.float32), rng.standard_normal((48, 64), np.float32)
assert np.allclose(kernel(a, b), a.astype(np.float64) @ b, atol=1e-4)
loaded = {"torch", "tvm", "tvm_ffi", "ray"} & set(sys.modules)
assert not loaded, loaded
with open("/proc/self/maps") as maps:
    assert "tvm" not in maps.read()
"""


def run_fresh(program, *arguments):
    head = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_fresh_process_needs_no_tvm_and_no_torch(artifact, tmp_path):
    (tmp_path / "gemm.tilewright").write_bytes(artifact.to_bytes())
    run_fresh(FRESH, str(tmp_path / "gemm.tilewright"))
    run_fresh(FRESH, str(tmp_path))  # the folder that holds it


PYTHON_THREADS = """
import tilewright, numpy as np
from tilewright.runtime import pool
for name in ("_loaded", "_beside_torch", "_system"):
    setattr(pool, name, lambda: None)
kernel = tilewright.load(sys.argv[1])
assert pool.shared_pool().name == "python threads"
kernel.set_threads(3)
rng = np.random.default_rng(0)
a, b = rng.standard_normal((40, 48), np.float32), rng.standard_normal((48, 64), np.float32)
for _ in range(50):
    assert np.allclose(kernel(a, b), a.astype(np.float64) @ b, atol=1e-4)
"""


def test_without_openmp_python_threads_do(artifact, tmp_path):
    (tmp_path / "gemm.tilewright").write_bytes(artifact.to_bytes())
    run_fresh(PYTHON_THREADS, str(tmp_path))


SHARED_POOL = """
import tilewright, numpy as np
kernel = tilewright.load(sys.argv[1])
a, b = np.ones((40, 48), np.float32), np.ones((48, 64), np.float32)
kernel.set_threads(4)
kernel(a, b)
import torch
torch.set_num_threads(4)
x = torch.ones(1 << 20)
(x + x).sum()
(torch.ones(256, 256) @ torch.ones(256, 256)).sum()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(libraries) == 1, libraries

"""


def test_one_openmp_library_serves_torch_and_the_kernel(artifact, tmp_path):
    (tmp_path / "gemm.tilewright").write_bytes(artifact.to_bytes())
    run_fresh(SHARED_POOL, str(tmp_path))


def test_workspace_is_kept_between_calls(artifact):
    """Each task takes n * 64 floats: repeated calls must not grow the process."""
    kernel = tilewright.load(artifact.to_bytes())
    kernel(A, B)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident()
    for _ in range(500):
        kernel(A, B)
    assert resident() - before < 64  # pages


def test_another_machine_is_refused(artifact):
    manifest = {**artifact.manifest, "launch": {"machine": "vax"}}
    with pytest.raises(ArtifactError, match="built for vax"):
        tilewright.load(type(artifact)(manifest, artifact.files).to_bytes())
    manifest = {**artifact.manifest, "launch": {"instructions": ["avx9000"]}}
    with pytest.raises(ArtifactError, match="needs avx9000"):
        tilewright.load(type(artifact)(manifest, artifact.files).to_bytes())


def test_a_library_that_cannot_be_loaded(artifact):
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        tilewright.load(type(artifact)(artifact.manifest, {"kernel.so": b"\x7fELF nonsense"}))
    with pytest.raises(ArtifactError, match=r"kernel\.so is missing"):
        tilewright.load(type(artifact)(artifact.manifest, {}))
