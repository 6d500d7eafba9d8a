"""The README's tables say what the result files say."""

from benchmarks.readme import render
from benchmarks.result_file import ROOT


def test_the_readme_holds_the_tables_of_the_result_files() -> None:
    assert render() in (ROOT / "README.md").read_text(encoding="utf-8")
