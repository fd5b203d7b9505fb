"""The two errors a user may meet; each message is one line that says what to do.

The library raises them, the command line prints them. Anything else that escapes is a bug.
"""


class ConfigError(ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RunError(RuntimeError):
    """The world was not as needed: a file, the network, a disk, a damaged checkpoint."""
