"""Imported before any test, and so before MLX: the package loads a fast BLAS first."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import mlx_attn

__all__ = ["mlx_attn"]


@pytest.fixture(scope="session")
def ring(tmp_path_factory) -> Callable[[int], Path]:
    """Writes a file of hosts for MLX: so many processes of this machine, on free ports."""

    def write(count: int) -> Path:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [made.getsockname()[1] for made in sockets]
        for made in sockets:
            made.close()
        path = tmp_path_factory.mktemp("ring") / "hosts.json"
        path.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
        return path

    return write
