import pytest

from cost_model.metrics import best_of_top_k, pairwise_accuracy, spearman, top_k_recall

TRUE = [1.0, 0.8, 0.5, 0.2]


def test_perfect_and_reversed_order():
    assert pairwise_accuracy(TRUE, [4, 3, 2, 1]) == 1.0
    assert pairwise_accuracy(TRUE, [1, 2, 3, 4]) == 0.0
    assert spearman(TRUE, [4, 3, 2, 1]) == pytest.approx(1.0)
    assert spearman(TRUE, [1, 2, 3, 4]) == pytest.approx(-1.0)


def test_one_swap():
    assert pairwise_accuracy(TRUE, [3, 4, 2, 1]) == pytest.approx(5 / 6)
    assert spearman(TRUE, [3, 4, 2, 1]) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert top_k_recall(TRUE, [3, 4, 2, 1], 1) == 0.0
    assert top_k_recall(TRUE, [3, 4, 2, 1], 2) == 1.0
    assert best_of_top_k(TRUE, [3, 4, 2, 1], 1) == pytest.approx(0.8)


def test_ties_count_a_half_and_close_pairs_not_at_all():
    assert pairwise_accuracy(TRUE, [1, 1, 1, 1]) == 0.5
    assert pairwise_accuracy(TRUE, [3, 4, 2, 1], margin=0.25) == 1.0


def test_no_answer_where_there_is_none():
    assert pairwise_accuracy([0.5, 0.5], [1, 2]) is None
    assert spearman([0.5, 0.5], [1, 2]) is None
    assert spearman([], []) is None
    assert top_k_recall([], [], 3) is None
    assert best_of_top_k([], [], 3) is None


def test_spearman_with_ties_uses_mean_ranks():
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


def test_bad_input():
    with pytest.raises(ValueError, match="shape"):
        spearman([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        pairwise_accuracy([1.0, float("nan")], [1.0, 2.0])
