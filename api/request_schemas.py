"""JSON Schemas of the request bodies, for the OpenAPI document. The nouns' own parsers decide; a test holds the two
together (every example and every generated body that breaks the schema is refused by the parser)."""

from typing import Any

from search_space.attention import KV_LAYOUTS, LAYOUTS, PASSES
from search_space.dtypes import ALIASES, WORKLOAD_DTYPES
from search_space.fields import EXTENT_MAX, INT64_MAX
from search_space.gemm import EPILOGUES, GROUPINGS, SCALES
from tuner.job import MAX_TASKS, MAX_TRIALS, MAX_WEIGHT, MIN_WEIGHT, PRESETS

Schema = dict[str, Any]

_EXTENT: Schema = {"type": "integer", "minimum": 1, "maximum": EXTENT_MAX}
_DTYPE: Schema = {"type": "string", "enum": [*WORKLOAD_DTYPES, *ALIASES]}
_FLAG: Schema = {"type": "boolean", "default": False}
_WINDOW: Schema = {"type": "integer", "minimum": -1, "maximum": EXTENT_MAX, "default": -1}
_HEAD_DIM: Schema = {"type": "integer", "minimum": 1, "maximum": 4096}


def _choice(values: tuple[str, ...]) -> Schema:
    return {"type": "string", "enum": list(values), "default": values[0]}


def _object(required: list[str], properties: Schema, **more: Any) -> Schema:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


GEMM = _object(
    ["op", "m", "n", "k"],
    {
        "op": {"const": "gemm"},
        "m": _EXTENT,
        "n": _EXTENT,
        "k": _EXTENT,
        "dtype": _DTYPE | {"description": "sets dtype_a and dtype_b"},
        "dtype_a": _DTYPE,
        "dtype_b": _DTYPE,
        "dtype_out": _DTYPE | {"description": "follows dtype_a unless given"},
        "batch": _EXTENT | {"default": 1},
        "accumulate": _choice(("float32",)),
        "trans_a": _FLAG,
        "trans_b": _FLAG | {"description": "B is stored [n, k], as the weight of a torch Linear"},
        "epilogue": _choice(EPILOGUES),
        "b_constant": _FLAG | {"description": "B is known ahead, so packing it is outside the measured time"},
        "groups": {"type": "integer", "minimum": 1, "maximum": 65536, "default": 1},
        "grouping": _choice(GROUPINGS),
        "scales": _choice(SCALES),
    },
    anyOf=[{"required": ["dtype"]}, {"required": ["dtype_a", "dtype_b"]}],
    description="C[batch, m, n] = epilogue(A @ B + bias)",
)

ATTENTION = _object(
    ["op", "head_dim", "dtype"],
    {
        "op": {"const": "attention"},
        "batch": _EXTENT | {"default": 1},
        "heads": _EXTENT | {"description": "sets heads_q and heads_kv"},
        "heads_q": _EXTENT,
        "heads_kv": _EXTENT | {"description": "divides heads_q; heads_q unless given"},
        "seq": _EXTENT | {"description": "sets seq_q and seq_kv"},
        "seq_q": _EXTENT,
        "seq_kv": _EXTENT | {"description": "seq_q unless given"},
        "head_dim": _HEAD_DIM,
        "head_dim_v": _HEAD_DIM | {"description": "head_dim unless given"},
        "dtype": _DTYPE,
        "causal": _FLAG | {"description": "aligned to the bottom right"},
        "window_left": _WINDOW | {"description": "keys seen besides the query's own; -1 is unlimited"},
        "window_right": _WINDOW,
        "softcap": {"type": "number", "minimum": 0, "default": 0},
        "scale": {"type": ["number", "null"], "description": "1 / sqrt(head_dim) unless given"},
        "layout": _choice(LAYOUTS),
        "kv_layout": _choice(KV_LAYOUTS),
        "lse": _FLAG,
        "pass": _choice(PASSES),
        "deterministic": _FLAG,
    },
    allOf=[
        {"oneOf": [{"required": ["heads"]}, {"required": ["heads_q"]}]},
        {"oneOf": [{"required": ["seq"]}, {"required": ["seq_q"]}]},
    ],
    description="O = softmax(scale * Q K^T + mask) V",
)

_TARGET_KIND: Schema = {"type": "string", "enum": ["auto", "cpu", "cuda", "llvm"], "default": "auto"}
_SHORT: Schema = {"type": ["string", "null"], "minLength": 1, "maxLength": 200}
_CORES: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": INT64_MAX}
TARGET: Schema = {
    "anyOf": [
        _TARGET_KIND,
        {"type": "null"},
        _object(
            [],
            {
                "kind": _TARGET_KIND,
                "arch": _SHORT,
                "mcpu": _SHORT | {"description": "alias of arch"},
                "model": _SHORT,
                "device": _SHORT | {"description": "alias of model"},
                "cores": _CORES,
                "num-cores": _CORES | {"description": "alias of cores"},
            },
        ),
    ],
    "description": "the kind of device, or what it must be; llvm is TVM's name of cpu",
}

WORKLOAD: Schema = {
    "oneOf": [_ref("GemmRequest"), _ref("AttentionRequest")],
    "discriminator": {
        "propertyName": "op",
        "mapping": {
            "gemm": "#/components/schemas/GemmRequest",
            "attention": "#/components/schemas/AttentionRequest",
        },
    },
}

_WEIGHT: Schema = {"type": "number", "exclusiveMinimum": 0, "default": 1, "description": "how often the model runs it"}
TASK = _object(["workload"], {"workload": _ref("WorkloadRequest"), "weight": _WEIGHT})

JOB = _object(
    [],
    {
        "name": {"type": "string", "maxLength": 200, "default": ""},
        "target": _ref("TargetRequest"),
        "tasks": {"type": "array", "items": _ref("TaskRequest"), "minItems": 1, "maxItems": MAX_TASKS},
        "workload": _ref("WorkloadRequest"),
        "max_trials": {"type": "integer", "minimum": 1, "maximum": MAX_TRIALS, "default": 64},
        "max_seconds": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "null: no limit"},
        "preset": {"type": "string", "enum": list(PRESETS), "default": "standard"},
        "seed": {"type": "integer", "minimum": 0, "maximum": INT64_MAX, "default": 0},
        "priority": {"type": "integer", "minimum": -100, "maximum": 100, "default": 0},
        "weight": {
            "type": "number",
            "minimum": MIN_WEIGHT,
            "maximum": MAX_WEIGHT,
            "default": 1,
            "description": "jobs of one priority get runner time in proportion to it",
        },
    },
    oneOf=[{"required": ["tasks"]}, {"required": ["workload"]}],
    description="what to tune, where, and how long",
)

BATCH = _object(
    ["workloads"],
    {
        "workloads": {"type": "array", "items": _ref("WorkloadRequest"), "minItems": 1, "maxItems": 512},
        "target": _ref("TargetRequest"),
        "nearest": _FLAG,
    },
    description="many lookups at once; answers come in the same order",
)

REQUEST_SCHEMAS: Schema = {
    "GemmRequest": GEMM,
    "AttentionRequest": ATTENTION,
    "WorkloadRequest": WORKLOAD,
    "TargetRequest": TARGET,
    "TaskRequest": TASK,
    "JobRequest": JOB,
    "BatchRequest": BATCH,
}
