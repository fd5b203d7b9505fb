"""The command line: one thin file per command, imported when it is called.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 an expected failure
(one line on stderr), 2 wrong usage, 130 interrupted after saving.
"""
