"""Lower, compile, link, pack: one function, total over candidates."""

import functools
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import search_space
from search_space.candidate import Candidate
from search_space.lowered import Lowered
from search_space.registry import generate_sketches, get_sketch
from search_space.target import Target
from search_space.workload import Operand, Workload
from tilewright.runtime import Artifact, digest_of
from tilewright.runtime.artifact import ASSEMBLY, SCHEMA, SCRIPT
from tuner.outcome import Outcome
from workers.build.cache import BuildCache
from workers.build.result import BuildError, BuildResult, LowerError

FORMAT = 2  # grows when the same program is packed in another way: older cache entries are then not found
_ERROR_CHARS = 4000
# Work of at least this much is looked at before it runs: a slow candidate takes milliseconds a call there.
JUDGED_FLOPS = 10_000_000


@dataclass(frozen=True)
class Compiled:
    """What a backend makes of a lowered program: the kind of artifact, its files, and what its loader needs."""

    kind: str
    files: Mapping[str, bytes]
    launch: Mapping[str, object]
    assembly: str = ""


@dataclass(frozen=True)
class Backend:
    """One kind of target. `compile` raises BuildError; `identity` names the compilers (part of the cache key).
    `hopeless` says why assembly shows that running it would only cost device time."""

    compile: Callable[[Lowered, Target], Compiled]
    identity: Callable[[], Mapping[str, str]]
    hopeless: Callable[[str, Target], str | None] | None = None


# kind of target -> module that holds BACKEND: a new kind is a new module.
_BACKENDS = {"cpu": "workers.build.cpu", "cuda": "workers.build.cuda"}


def backend_of(kind: str) -> Backend:
    """BuildError for a kind that nothing here can compile."""
    if kind not in _BACKENDS:
        raise BuildError(f"no compiler for targets of kind {kind!r}")
    backend: Backend = importlib.import_module(_BACKENDS[kind]).BACKEND
    return backend


def build_candidate(
    workload: Workload, target: Target, candidate: Candidate, cache: BuildCache | None = None
) -> BuildResult:
    """Build `candidate` for `workload` on `target` in the calling process (imports tvm; may crash with it).

    Never raises for what the candidate does: LOWER_ERROR and BUILD_ERROR carry the first underlying message.
    """
    start = time.perf_counter()
    try:
        key = cache_key(workload, target, candidate)
        if cache is not None and (data := cache.get(key)) is not None:
            return BuildResult(Outcome.OK, data, digest_of(data), cached=True)
        built = build_lowered(lower(workload, target, candidate), workload, target, candidate)
        reject_hopeless(built, workload, target, candidate)
        artifact = built.to_bytes()
    except LowerError as error:
        return BuildResult(Outcome.LOWER_ERROR, error=_short(error), build_secs=time.perf_counter() - start)
    except BuildError as error:
        return BuildResult(Outcome.BUILD_ERROR, error=_short(error), build_secs=time.perf_counter() - start)
    if cache is not None:
        cache.put(key, artifact)
    return BuildResult(Outcome.OK, artifact, digest_of(artifact), build_secs=time.perf_counter() - start)


def lower(workload: Workload, target: Target, candidate: Candidate) -> Lowered:
    """LowerError for an unknown sketch, another version of it, or whatever its lowering raises."""
    try:
        sketch = get_sketch(candidate.sketch)
    except KeyError:
        raise LowerError(f"no sketch named {candidate.sketch!r}") from None
    if sketch.version != candidate.version:
        message = f"sketch {sketch.name} is at version {sketch.version}, the candidate was made for {candidate.version}"
        raise LowerError(message)
    broken = sketch.violated(workload, target, candidate.knobs)
    if broken is not None:
        raise LowerError(f"{broken.name}: {broken.reason}")
    try:
        module = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower")
        lowered = module.lower(workload, target, candidate.knobs)
    except MemoryError:
        raise
    except Exception as error:
        raise LowerError(first_message(error)) from error
    return lowered if isinstance(lowered, Lowered) else Lowered(lowered)


def build_lowered(lowered: Lowered, workload: Workload, target: Target, candidate: Candidate) -> Artifact:
    """Compile a lowered program and pack it. Raises BuildError (BuildToolMissing where a tool is not installed)."""
    backend = backend_of(target.kind)
    compiled = backend.compile(lowered, target)
    files = {**compiled.files, SCRIPT: str(lowered.module.script()).encode()}
    if compiled.assembly:
        files[ASSEMBLY] = compiled.assembly.encode()
    manifest: dict[str, object] = {
        "schema": SCHEMA,
        "kind": compiled.kind,
        "workload": workload.to_json(),
        "candidate": candidate.to_json(),
        "target": target.to_json(),
        "environment": dict(backend.identity()),
        "inputs": [_operand(o) for o in workload.inputs()],
        "outputs": [_operand(o) for o in workload.outputs()],
        "prepack": [{"operand": p.operand, "symbol": p.symbol, "nbytes": p.nbytes} for p in lowered.prepack],
        "launch": dict(compiled.launch),
    }
    return Artifact(manifest, files)


def reject_hopeless(built: Artifact, workload: Workload, target: Target, candidate: Candidate) -> None:
    """BuildError for a program that cannot be fast. Never for the simplest sketch of a task, which is there to give an
    answer whatever the shape, and never where the work is so small that running it costs nothing."""
    judge = backend_of(target.kind).hopeless
    if judge is None or workload.flops() < JUDGED_FLOPS:
        return
    if candidate.sketch == generate_sketches(workload, target)[0].sketch.name:
        return
    reason = judge(built.text(ASSEMBLY) or "", target)
    if reason is not None:
        raise BuildError(f"rejected before running: {reason}")


def cache_key(workload: Workload, target: Target, candidate: Candidate) -> str:
    """Everything that decides the bytes of the artifact, as canonical JSON."""
    parts = {
        "workload": workload.to_json(),
        "target": target.to_json(),
        "candidate": candidate.to_json(),
        "compilers": dict(backend_of(target.kind).identity()),
        "sources": _sources(candidate.sketch),
        "format": FORMAT,
    }
    return json.dumps(parts, sort_keys=True)


@functools.cache
def _sources(sketch: str) -> str:
    """Hash of the lowering's source: while it is being written, its version number alone says too little."""
    root = Path(next(iter(search_space.__path__)))
    digest = hashlib.sha256()
    for path in sorted((*root.glob("lowering/*.py"), *root.glob("hopper/*.py"), *root.glob(f"sketches/{sketch}/*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def first_message(error: BaseException) -> str:
    """The innermost cause in one line: TVM wraps what went wrong into traces of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [x for x in lines if x and not x.startswith(("File ", "Traceback", "note:", "-->", "|"))]
    return f"{type(error).__name__}: {telling[0] if telling else 'no message'}"


def _operand(operand: Operand) -> dict[str, object]:
    return {"name": operand.name, "shape": list(operand.shape), "dtype": operand.dtype}


def _short(error: Exception) -> str:
    return str(error)[:_ERROR_CHARS]
