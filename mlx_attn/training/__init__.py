"""Training: settings, batches, the step, evaluation, checkpoints, the loop of events."""
