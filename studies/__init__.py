"""What attention needs, measured: from the records of trainings to docs/answers.md.

`lengths.toml` holds the texts and the contrasts, docs/answers/records the trainings. Nothing trains
here: every number comes with the `mlx-attn compare` command that asks it again.
"""
