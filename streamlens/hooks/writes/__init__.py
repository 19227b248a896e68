"""CAPTURE: the writes of a run without edits, in the parts that were asked for."""
