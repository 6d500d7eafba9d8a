"""Each module is one command that measures ours beside a peer in one run and writes docs/results/."""
