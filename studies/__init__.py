"""What attention needs, measured: from the records of trainings to docs/answers.md.

Every number comes with the command that asks it again.
"""
