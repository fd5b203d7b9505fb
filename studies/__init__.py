"""What attention needs, measured: from the records of trainings to docs/answers.md.

`lengths.toml` holds the texts and the contrasts, docs/answers/records the trainings. Every number
comes with the command that asks it again: `mlx-attn compare`, or `studies.run` for two sizes.
"""
