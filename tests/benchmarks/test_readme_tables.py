"""The pages of results say what the result files say."""

import pytest

from benchmarks.readme import PAGES, updated


@pytest.mark.parametrize(("page", "tables"), PAGES, ids=[page.name for page, _ in PAGES])
def test_a_page_of_results_holds_what_the_result_files_say(page, tables) -> None:
    assert updated(page, tables) == page.read_text(encoding="utf-8")
