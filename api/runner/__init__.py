"""The process that claims jobs by lease and runs the search loop."""
