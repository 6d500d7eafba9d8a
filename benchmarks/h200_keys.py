"""Names the kernel that a candidate of the H200 race compiles to."""

import hashlib

from benchmarks.h200_candidates import H200, PLANS
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload


def kernel_key(workload: GemmWorkload, candidate: Candidate) -> str:
    """Hash of what the source depends on: the sketch, its version and the tile, never an extent."""
    tile, _ = PLANS[candidate.sketch](workload, H200, candidate.knobs)
    return hashlib.sha256(f"{candidate.sketch} {candidate.version} {tile}".encode()).hexdigest()[:16]
