"""A user's own kernel in the measuring child: the same check and clock, and only what the worker was started with."""

from collections.abc import Mapping

import pytest

from workers import self_test
from workers.cpu_workbench import CpuWorkbench
from workers.measure_child import MeasuringChild
from workers.peers import check_spec

WORKLOAD = {"op": "gemm", "m": 24, "n": 40, "k": 96, "dtype": "float32"}
ALLOWED = tuple(f"peer_functions:{name}" for name in ("right", "wrong", "none", "absent"))


@pytest.fixture(scope="module")
def child() -> MeasuringChild:
    child = MeasuringChild(CpuWorkbench, self_test.on_cpu, peers=(*ALLOWED, "no_such_module_here:f"))
    child({"do": "open", "workload": WORKLOAD}, b"")
    return child


def ask(child: MeasuringChild, do: str, spec: str, **more: object) -> Mapping[str, object]:
    message = {"do": do, "name": f"peer:{spec}", "entry": None, "vendor": {}, "load": True, **more}
    return child(message, b"")[0]


def test_a_right_peer_is_checked_and_timed(child: MeasuringChild) -> None:
    admitted = ask(child, "admit", "peer_functions:right")
    assert 0.0 < float(str(admitted["max_rel_err"])) < 1e-2  # of the cancelling inputs, too
    timed = ask(child, "time", "peer_functions:right", calls=admitted["calls"], warm_up=True)
    assert float(str(timed["secs"])) > 0.0


@pytest.mark.parametrize(
    ("spec", "outcome", "words"),
    [
        ("peer_functions:wrong", "WRONG_ANSWER", "elements are wrong"),
        ("peer_functions:none", "BUILD_ERROR", "no kernel for this workload"),
        ("peer_functions:absent", "BUILD_ERROR", "PYTHONPATH"),
        ("no_such_module_here:f", "BUILD_ERROR", "PYTHONPATH"),
        ("os:getpid", "BUILD_ERROR", "not a peer that this worker was started with"),
    ],
)
def test_any_other_is_left_out_with_the_reason(child: MeasuringChild, spec: str, outcome: str, words: str) -> None:
    told = ask(child, "admit", spec)
    assert told["rejected"] == outcome
    assert words in str(told["error"])


@pytest.mark.parametrize("spec", ["os", "os:", ":f", "os.path:join(1)", "a b:c", "../x:f", "a:b:c"])
def test_a_name_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="module:function"):
        check_spec(spec)
