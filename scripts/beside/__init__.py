"""One model seen three ways: by hand in float64, with streamlens, with transformer-lens."""
