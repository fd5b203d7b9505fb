"""Check that this machine computes correctly, against NumPy in float64."""
