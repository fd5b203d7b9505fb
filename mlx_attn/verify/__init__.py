"""Whether this machine computes the right thing: every check against NumPy's float64."""
