"""Examples shown in the OpenAPI document; a test holds each against its own schema and parser."""

from typing import Any

GEMM: dict[str, Any] = {
    "op": "gemm",
    "m": 16,
    "n": 6144,
    "k": 4096,
    "dtype_a": "bfloat16",
    "dtype_b": "bfloat16",
    "dtype_out": "bfloat16",
    "trans_b": True,
}
GEMM_REQUEST: dict[str, Any] = {"op": "gemm", "m": 16, "n": 6144, "k": 4096, "dtype": "bfloat16", "trans_b": True}
ATTENTION_REQUEST: dict[str, Any] = {
    "op": "attention",
    "batch": 1,
    "heads_q": 32,
    "heads_kv": 8,
    "seq_q": 2048,
    "seq_kv": 2048,
    "head_dim": 128,
    "causal": True,
    "dtype": "bfloat16",
}
JOB_REQUEST: dict[str, Any] = {
    "name": "llama decode",
    "target": {"kind": "cuda"},
    "tasks": [{"workload": GEMM_REQUEST, "weight": 32}, {"workload": ATTENTION_REQUEST, "weight": 32}],
    "max_trials": 256,
    "max_seconds": 900,
    "preset": "standard",
    "seed": 0,
}
SINGLE_JOB_REQUEST: dict[str, Any] = {
    "workload": {"op": "gemm", "m": 128, "n": 3072, "k": 768, "dtype": "float32"},
    "max_trials": 64,
}
BATCH_REQUEST: dict[str, Any] = {"target": "cuda", "workloads": [GEMM_REQUEST, ATTENTION_REQUEST], "nearest": False}
TARGET: dict[str, Any] = {
    "kind": "cuda",
    "arch": "sm_90a",
    "model": "NVIDIA H200",
    "cores": 132,
    "l2_bytes": 62914560,
    "memory_bytes": 150754820096,
    "shared_bytes": 232448,
    "vector_bits": 0,
    "l1_bytes": 0,
    "l3_bytes": 0,
    "features": [],
}
KNOBS: dict[str, Any] = {"tile_m": 64, "tile_n": 128, "tile_k": 64, "stages": 6}
TRIAL: dict[str, Any] = {
    "id": 4711,
    "number": 17,
    "task": 0,
    "attempt": 0,
    "sketch": "gemm_example",
    "sketch_version": 1,
    "knobs": KNOBS,
    "outcome": "OK",
    "latency_s": 1.43e-05,
    "latency_ci95_s": [1.41e-05, 1.45e-05],
    "predicted_score": 0.93,
    "error": None,
    "device": "GPU-0f0e",
    "started_at": "2026-01-05T10:00:01.250000Z",
    "finished_at": "2026-01-05T10:00:01.900000Z",
}
TRIAL_DETAIL: dict[str, Any] = TRIAL | {"workload": GEMM, "target": TARGET}
BASELINE: dict[str, Any] = {"name": "cublas", "latency_s": 1.52e-05}
JOB: dict[str, Any] = {
    "id": "job_1f0c2e",
    "name": "llama decode",
    "state": "running",
    "stop_reason": None,
    "target": {"kind": "cuda", "arch": None, "model": None, "cores": None},
    "seed": 0,
    "preset": "standard",
    "priority": 0,
    "weight": 1.0,
    "max_trials": 256,
    "max_seconds": 900.0,
    "trials": {"done": 18, "ok": 16, "failed_by": {"BUILD_ERROR": 2}},
    "task_count": 1,
    "elapsed_s": 21.5,
    "search_overhead": None,
    "eta_s": 284.0,
    "created_at": "2026-01-05T10:00:00Z",
    "started_at": "2026-01-05T10:00:00.500000Z",
    "finished_at": None,
    "error": None,
    "tasks": [
        {
            "index": 0,
            "workload": GEMM,
            "weight": 32.0,
            "trials": 18,
            "target": TARGET,
            "best": {
                "latency_s": 1.43e-05,
                "tflops": 56.3,
                "speedup_vs_baseline": None,
                "speedup_ci95": None,
                "roofline_fraction": None,
                "promoted": False,
                "served": None,
            },
            "baseline": BASELINE,
            "schedule_id": None,
            "stop_reason": None,
        }
    ],
    "phase_seconds": {"build": 12.1, "measure": 8.4},
    "last_event": 23,
    "waiting_for": None,
}
ENVIRONMENT: dict[str, Any] = {
    "kind": "cuda",
    "model": "NVIDIA H200",
    "arch": "sm_90a",
    "cores": 132,
    "driver": "580.1",
    "cuda": "13.0",
    "tvm": "0.27.0",
    "compiler": "nvrtc 13.0",
    "policy": "v1/cold",
}
SCHEDULE: dict[str, Any] = {
    "id": "sch_8a91",
    "workload": GEMM,
    "target": TARGET,
    "sketch": "gemm_example",
    "sketch_version": 1,
    "knobs": KNOBS,
    "artifact": "9f2b6c",
    "artifact_url": "/v1/schedules/sch_8a91/artifact",
}
SCHEDULE_DETAIL: dict[str, Any] = {
    "schedule": SCHEDULE,
    "latency_s": 1.43e-05,
    "latency_ci95_s": [1.42e-05, 1.44e-05],
    "tflops": 56.3,
    "bytes_per_s": 3.53e12,
    "baseline": BASELINE,
    "speedup_vs_baseline": 1.06,
    "speedup_ci95": [1.05, 1.07],
    "roofline": {"bound": "memory", "fraction": 0.83, "ridge_flop_per_byte": 190.0},
    "served": {"kind": "tilewright"},
    "max_rel_err": 0.002,
    "environment": ENVIRONMENT,
    "job_id": "job_1f0c2e",
    "measured_at": "2026-01-05T10:05:00Z",
}
BEST: dict[str, Any] = SCHEDULE_DETAIL | {"exact": True}
NEAREST: dict[str, Any] = {
    "exact": False,
    "nearest_to": GEMM | {"m": 20},
    "schedule": SCHEDULE,
    "runs_as_is": True,
    "predicted_latency_s": 1.44e-05,
    "predicted_interval_s": [1.2e-05, 1.7e-05],
    "predicted_baseline_latency_s": 1.53e-05,
    "neighbour": SCHEDULE_DETAIL,
    "served": {"kind": "tilewright"},
}
PROBLEM: dict[str, Any] = {
    "type": "urn:tilewright:problem:invalid-field",
    "title": "A field cannot be right",
    "status": 422,
    "detail": "tasks.0.workload.dtype: unknown dtype 'float17'",
    "code": "invalid-field",
    "field": "tasks.0.workload.dtype",
    "errors": [
        {
            "field": "tasks.0.workload.dtype",
            "message": "unknown dtype 'float17'",
            "allowed": ["float32", "float16", "bfloat16", "float8_e4m3"],
        }
    ],
}
