"""The command `mlx-attn`, and `python -m mlx_attn`."""

import signal


def main(*arguments: str) -> None:
    """Run the command line; Ctrl-C before and after it ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mlx_attn.cli.main import main as run

    run(arguments or None)


if __name__ == "__main__":
    main()
