"""The options that describe a workload, shared by every command that takes one (tune, submit, best)."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

DTYPE = "float32, float16, bfloat16 or float8_e4m3 (fp32, fp16, bf16, fp8)"


def gemm(
    m: Annotated[int, typer.Option("--m", help="rows of A and C")],
    n: Annotated[int, typer.Option("--n", help="columns of B and C")],
    k: Annotated[int, typer.Option("--k", help="columns of A, rows of B")],
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "float32",
    dtype_out: Annotated[str | None, typer.Option(help="element type of C; follows --dtype")] = None,
    batch: Annotated[int, typer.Option(help="independent products")] = 1,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A is stored [k, m]")] = False,
    trans_b: Annotated[
        bool, typer.Option("--trans-b", help="B is stored [n, k], as a PyTorch Linear's weight")
    ] = False,
    epilogue: Annotated[str, typer.Option(help="none, bias, bias+gelu, bias+relu or bias+silu")] = "none",
    b_constant: Annotated[bool, typer.Option("--b-constant", help="B is a weight: packed ahead of time")] = False,
    groups: Annotated[int, typer.Option(help="experts of a grouped GEMM")] = 1,
    grouping: Annotated[str, typer.Option(help="none, contiguous or masked")] = "none",
    scales: Annotated[str, typer.Option(help="float8 scales: none, tensor or block")] = "none",
) -> dict[str, object]:
    return {"op": "gemm", **_given(gemm, locals())}


def attention(
    heads_q: Annotated[int, typer.Option("--heads-q", "--heads", help="query heads")],
    seq_q: Annotated[int, typer.Option("--seq-q", "--seq", help="query tokens")],
    head_dim: Annotated[int, typer.Option(help="columns of Q and K")],
    heads_kv: Annotated[int | None, typer.Option(help="key and value heads; as many as query heads")] = None,
    seq_kv: Annotated[int | None, typer.Option(help="key tokens; as many as query tokens")] = None,
    head_dim_v: Annotated[int | None, typer.Option(help="columns of V; follows --head-dim")] = None,
    batch: Annotated[int, typer.Option(help="sequences")] = 1,
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "float32",
    causal: Annotated[bool, typer.Option("--causal", help="mask the future, aligned to the bottom right")] = False,
    window_left: Annotated[int, typer.Option(help="keys seen before the query's own; -1: all")] = -1,
    window_right: Annotated[int, typer.Option(help="keys seen after the query's own; -1: all")] = -1,
    softcap: Annotated[float, typer.Option(help="cap c of the scores, c * tanh(s / c); 0: none")] = 0.0,
    scale: Annotated[float | None, typer.Option(help="factor of the scores; 1 / sqrt(head_dim)")] = None,
    layout: Annotated[str, typer.Option(help="bhsd or bshd")] = "bhsd",
    kv_layout: Annotated[str, typer.Option(help="dense, packed or paged")] = "dense",
    lse: Annotated[bool, typer.Option("--lse", help="the log-sum-exp is wanted too")] = False,
    pass_: Annotated[str, typer.Option("--pass", help="forward or backward")] = "forward",
    deterministic: Annotated[bool, typer.Option("--deterministic", help="a fixed order of sums backward")] = False,
) -> dict[str, object]:
    given = _given(attention, locals())
    if "pass_" in given:
        given["pass"] = given.pop("pass_")
    return {"op": "attention", **given}


def _given(describe: Callable[..., object], options: dict[str, Any]) -> dict[str, object]:
    """What differs from the option's default: the API fills in the rest, so that one meaning has one spelling."""
    defaults = {name: p.default for name, p in inspect.signature(describe).parameters.items()}
    return {name: value for name, value in options.items() if name == "dtype" or value != defaults[name]}


def with_workload(
    describe: Callable[..., dict[str, object]], run: Callable[..., None], doc: str
) -> Callable[..., None]:
    """One command that takes the options of `describe` and those of `run` (all but its first parameter)."""
    described = list(inspect.signature(describe).parameters.values())
    own = list(inspect.signature(run).parameters.values())[1:]
    names = {p.name for p in described}

    def command(**values: Any) -> None:
        workload = describe(**{k: v for k, v in values.items() if k in names})
        run(workload, **{k: v for k, v in values.items() if k not in names})

    parameters = sorted(
        (p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*described, *own)),
        key=lambda p: p.default is not inspect.Parameter.empty,
    )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = doc
    return command


def add_workload_commands(app: typer.Typer, run: Callable[..., None], doc: str) -> None:
    """`gemm` and `attention` under `app`, each calling `run(workload, **its own options)`."""
    app.command("gemm")(with_workload(gemm, run, doc))
    app.command("attention")(with_workload(attention, run, doc))
