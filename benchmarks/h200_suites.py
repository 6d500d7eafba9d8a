"""The sets of (workload, candidates) that the H200 race knows by name."""

from collections.abc import Callable

from benchmarks.h200_candidates import race_entries
from benchmarks.h200_portable import portable_entries
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload

Entries = list[tuple[GemmWorkload, list[Candidate]]]
SUITES: dict[str, Callable[[], Entries]] = {"gemm": race_entries, "portable": portable_entries}
