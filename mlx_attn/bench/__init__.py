"""Speed and memory of every variant, measured in turns."""
