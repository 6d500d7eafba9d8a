"""The closed form of the pairs a mask shows, against counting them."""

import itertools

import pytest

from search_space.attention import AttentionWorkload


def workload(**changes: object) -> AttentionWorkload:
    base = {"op": "attention", "heads": 1, "seq_q": 4, "seq_kv": 4, "head_dim": 8, "dtype": "float32"}
    return AttentionWorkload.from_json({**base, **changes})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (1, 7), (5, 3), (4, 4), (2, 5), (9, 1)])
def test_closed_form_equals_counting(causal: bool, seq_q: int, seq_kv: int) -> None:
    for left, right in itertools.product((-1, 0, 1, 3, 8), repeat=2):
        w = workload(seq_q=seq_q, seq_kv=seq_kv, causal=causal, window_left=left, window_right=right)
        counted = sum(max(0, last - first) for first, last in map(w.visible, range(w.seq_q)))
        assert w.visible_pairs() == counted, w


def test_a_request_for_two_thousand_million_rows_is_answered_at_once() -> None:
    w = workload(seq_q=2**31 - 1, seq_kv=3, causal=True, head_dim=1)
    assert w.visible_pairs() == 1 + 2 + 3
