"""Training: settings, batches, the step, evaluation, checkpoints, and the loop that yields reports.

Nothing here prints or reads the terminal.
"""
