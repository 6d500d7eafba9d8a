"""FlashAttention-3's techniques turned off one by one in the Hopper forward sketch, on the setting of its Table 2.

python -m benchmarks.h200_attention_emit DIR --ablation       CUDA sources (needs TVM)
python -m benchmarks.h200_attention compile DIR               cubins (needs nvcc)
python -m benchmarks.h200_attention_ablation race DIR FILE    times, as JSON (needs the GPU)
python -m benchmarks.h200_attention_ablation report FILE      into the tables of docs/results/h200_attention.json
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.h200_attention_candidates import kernel_key
from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.knob import Knobs
from search_space.sketches.cuda_attention_fwd.space import SKETCH

# arXiv:2407.08608, Table 2: TFLOP/s on an H100, head_dim 128, float16, full mask, batch 4, 16 heads, 8448 tokens.
PAPER = {"all": 661, "no overlap of softmax and products": 582, "no warp specialisation": 570}
_FULL: Knobs = {
    "block_kv": 128, "stages": 2, "q_buffers": 2, "consumers": 2, "overlap": True, "pingpong": True, "pv_wait": "max",
    "rescale": "under", "lazy": 0, "diagonal": "mask", "epilogue": "tma", "schedule": "static", "group": 4,
}  # fmt: skip
_CAUSAL: Knobs = {**_FULL, "diagonal": "skip", "schedule": "dynamic", "group": 8}
_SINGLE: Knobs = {"q_buffers": 1, "schedule": "single"}
_PLAIN: Knobs = {"overlap": False, "pingpong": False, "pv_wait": "early", "rescale": "after"}
_OFF: Mapping[str, Knobs] = {
    "all": {},
    "no overlap of softmax and products": _PLAIN,
    "no ping-pong": {"pingpong": False},
    "wait for P V left to ptxas": {"pv_wait": "early", "rescale": "after"},
    "O rescaled after the powers": {"rescale": "after"},
    "one tile a block, one Q buffer": _SINGLE,
    "one consumer warpgroup": {"consumers": 1, "pingpong": False, "diagonal": "mask"},
    "neither overlap, ping-pong nor persistence": {**_PLAIN, **_SINGLE},
    "lazy rescale": {"lazy": 8},
}
_CAUSAL_OFF: Mapping[str, Knobs] = {
    **_OFF,
    "tiles dealt ahead": {"schedule": "static"},
    "tiles above the diagonal masked": {"diagonal": "mask"},
}
ROUNDS = 30


def settings() -> list[tuple[AttentionWorkload, dict[str, Candidate]]]:
    """The paper's shape and FlashAttention's longest one, both masks, with what each technique's absence is called."""
    found = []
    for batch, seq in ((4, 8448), (1, 16384)):
        for causal in (False, True):
            w = AttentionWorkload.from_json({
                "batch": batch, "heads": 16, "seq": seq, "head_dim": 128, "causal": causal, "dtype": "fp16",
                "layout": "bshd",
            })  # fmt: skip
            base, off = (_CAUSAL, _CAUSAL_OFF) if causal else (_FULL, _OFF)
            chosen = {name: {**base, **change} for name, change in off.items()}
            legal = {name: k for name, k in chosen.items() if SKETCH.violated(w, H200, k) is None}
            found.append((w, {name: Candidate.of(SKETCH.name, SKETCH.version, k) for name, k in legal.items()}))
    return found


def kernels() -> dict[str, tuple[AttentionWorkload, Candidate]]:
    """kernel key -> one (workload, candidate) that has it."""
    return {kernel_key(w, c): (w, c) for w, chosen in settings() for c in chosen.values()}


def race(folder: Path, out: Path) -> None:
    """All variants of a setting in turn, in random order, each after a short rest; right ones only."""
    import torch

    from benchmarks import h200_attention_reference as ref
    from benchmarks import h200_attention_worker as worker
    from workers import cuda_bench as bench

    torch.zeros(1, device="cuda")  # makes the context that the driver calls use
    programs, rng, tables = worker.Programs(folder), random.Random(0), []
    for w, chosen in settings():
        tensors = worker.make_inputs(w, 1)
        expected = ref.make_reference(w, *(tensors[n] for n in "qkv"))
        repeats = max(1, round(2e-3 / (w.flops() / 6e14)))
        graphs, wrong = {}, []
        for name, c in chosen.items():
            call = worker.bind(w, programs.load(w, c), tensors)
            if worker.check(w, call, tensors, expected)[0]:
                graphs[name] = bench.capture([call], repeats)
            else:
                wrong.append(name)
        graphs["cuDNN"] = bench.capture([worker.peers(w, tensors)["cudnn"]], repeats)
        times = worker.rested(graphs, ROUNDS, rng)
        rows = {
            name: {
                "tflops": round(w.flops() / statistics.median(spent) * 1e-12, 1),
                "slower_than_all": [round(x, 4) for x in bench.paired_ratio(spent, times["all"], rng)],
                "knobs": chosen[name].knobs if name in chosen else None,
            }
            for name, spent in times.items()
        }
        tables.append({"workload": w.to_json(), "variants": rows, "wrong": wrong})
        print(w.seq_q, w.causal, {name: row["tflops"] for name, row in rows.items()}, "wrong", wrong, flush=True)
    out.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "rounds": ROUNDS, "settings": tables}))


def report(measured: Path, into: Path = Path("docs/results/h200_attention.json")) -> None:
    result = json.loads(into.read_text(encoding="utf-8"))
    result["tables"]["techniques_turned_off"] = {
        "protocol": f"TFLOP/s (causal counts half), float16; {ROUNDS} rounds in random order with 3 ms of rest; "
        "slower_than_all: median of paired ratios with its 95 % bootstrap interval. Warp specialisation is not a knob: "
        "a producer warpgroup is in every variant.",
        "paper_table_2_tflops_on_h100": PAPER,
        **json.loads(measured.read_text(encoding="utf-8")),
    }
    into.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    paths = [Path(x) for x in sys.argv[2:]]
    {"race": race, "report": report}[sys.argv[1]](*paths)
