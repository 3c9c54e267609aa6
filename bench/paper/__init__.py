"""The paper's tables, run again: ours beside a plain torch baseline and the paper's figures."""
