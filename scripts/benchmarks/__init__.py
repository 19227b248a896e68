"""What `scripts/bench.py` is made of: one module per table, over `timing`, `subject` and `table`."""
