"""What is asked of trained models: conversions, comparisons, probes."""
