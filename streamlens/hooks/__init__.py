"""CAPTURE, EDIT, REPLAY: the only code that registers hooks or runs a model's forward."""
