"""From a candidate to a cubin artifact, where a CUDA compiler is installed."""

import pytest

from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.registry import get_sketch
from search_space.target import Target
from tilewright.runtime import Artifact, ArtifactError, load
from tuner.outcome import Outcome
from workers.build import BuildToolMissing, build_candidate
from workers.build.cuda import find_nvcc

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    try:
        find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    w = GemmWorkload.from_json({"m": 16, "n": 512, "k": 512, "dtype": "bf16", "trans_b": True})
    sketch = get_sketch("cuda_gemm_skinny")
    result = build_candidate(w, H200, Candidate.of(sketch.name, sketch.version, sketch.seeds(w, H200)[0]))
    assert result.outcome is Outcome.OK, result.error
    assert result.artifact is not None
    return Artifact.from_bytes(result.artifact, result.digest)


def test_the_artifact_holds_a_cubin_and_how_to_launch_it(artifact: Artifact) -> None:
    assert artifact.kind == "cubin"
    assert artifact.files["kernel.cubin"].startswith(b"\x7fELF")
    launch = artifact.manifest["launch"]
    assert isinstance(launch, dict)
    (kernel,) = launch["kernels"]
    assert kernel["parameters"] == list(kernel["arguments"])
    assert kernel["arguments"]["A_map"]["dims"] == ["k", "m"]
    environment = artifact.manifest["environment"]
    assert isinstance(environment, dict)
    assert environment["compiler"].startswith("nvcc ")


def test_it_says_what_is_missing_where_there_is_no_gpu(artifact: Artifact) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ArtifactError, match="CUDA device"):
        load(artifact)
