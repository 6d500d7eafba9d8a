"""The command line's workload options spell the API's workloads."""

from typing import Any

import typer
from typer.testing import CliRunner

from search_space.registry import all_sketches  # noqa: F401  registers the ops
from search_space.workload import parse_workload
from tilewright.cli.workload_options import add_workload_commands


def run(*arguments: str) -> tuple[int, list[dict[str, object]], dict[str, Any]]:
    app, seen, own = typer.Typer(), [], {}

    def take(workload: dict[str, object], extra: int = 3) -> None:
        seen.append(workload)
        own["extra"] = extra

    add_workload_commands(app, take, "A command.")
    return CliRunner().invoke(app, list(arguments)).exit_code, seen, own


def test_gemm_options_give_the_workload_of_the_api() -> None:
    code, seen, own = run(
        "gemm", "--m", "16", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--trans-b", "--extra", "5"
    )
    assert code == 0
    assert own == {"extra": 5}
    expected = {"op": "gemm", "m": 16, "n": 4096, "k": 4096, "dtype": "bfloat16", "trans_b": True}
    assert parse_workload(seen[0]) == parse_workload(expected)


def test_attention_options_give_the_workload_of_the_api() -> None:
    options = [
        "--heads",
        "12",
        "--seq",
        "128",
        "--head-dim",
        "64",
        "--causal",
        "--window-left",
        "0",
        "--pass",
        "backward",
    ]
    code, seen, _ = run("attention", *options)
    assert code == 0
    expected = {"op": "attention", "heads": 12, "seq": 128, "head_dim": 64, "dtype": "float32", "causal": True}
    assert parse_workload(seen[0]) == parse_workload({**expected, "window_left": 0, "pass": "backward"})


def test_one_row_is_not_taken_for_a_default() -> None:
    _, seen, _ = run("gemm", "--m", "1", "--n", "1", "--k", "1")
    assert parse_workload(seen[0]).to_json()["m"] == 1


def test_a_missing_extent_is_a_bad_argument() -> None:
    assert run("gemm", "--m", "1", "--n", "1")[0] == 2
