"""Long work on a text logs how far it is; the command line shows that log on stderr."""

import logging

_LOG = logging.getLogger(__name__)


def log_progress(what: str, before: int, done: int, total: int) -> None:
    """Log a line if what is done has reached another tenth of the total."""
    if 10 * before // total < 10 * done // total:
        _LOG.info("%s: %s of %s", what, f"{done:,}", f"{total:,}")
