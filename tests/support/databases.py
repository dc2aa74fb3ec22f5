"""A PostgreSQL and a Redis for one test, from Debian's packages."""

import contextlib
import errno
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from links import free_port

PATIENCE = 20.0  # seconds for a server to start
POSTGRES = Path("/usr/lib/postgresql")


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once the process listens on this port."""
    deadline = time.monotonic() + PATIENCE
    with socket.socket() as sock:
        while sock.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.01)  # there is no notification to wait for


@contextlib.contextmanager
def running(command: list[str], port: int, user: str | None = None) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user
    )
    try:
        wait_for_port(port, process)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def redis(folder: Path, certificate: Path) -> Iterator[tuple[int, int]]:
    """Run a Redis; yield its ports, without and with TLS."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    plain, secure = free_port(), free_port()
    command = [
        *("redis-server", "--port", str(plain), "--bind", "127.0.0.1"),
        *("--save", "", "--appendonly", "no", "--dir", str(folder)),
        *("--tls-port", str(secure), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(certificate)),
    ]
    with running(command, plain):
        yield plain, secure


@contextlib.contextmanager
def postgres(certificate: Path) -> Iterator[int]:
    """Run a PostgreSQL, with and without TLS, for user "postgres"; yield its port."""
    programs = sorted(POSTGRES.glob("*/bin/postgres"))
    if not programs:
        pytest.skip("needs postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # root may not run it
    with tempfile.TemporaryDirectory() as name:
        data, key = Path(name, "data"), Path(name, "server.pem")
        shutil.copy(certificate, key)
        key.chmod(0o600)
        if user is not None:
            entry = pwd.getpwnam(user)
            for path in (name, key):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        initdb = programs[-1].with_name("initdb")
        subprocess.run(
            [
                *(str(initdb), "-D", str(data), "-U", "postgres"),
                *("--auth=trust", "--no-sync", "--no-instructions", "--locale=C"),
            ],
            stdout=subprocess.DEVNULL,
            check=True,
            user=user,
            cwd=name,
        )
        port = free_port()
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": name,
            "fsync": "off",
            "ssl": "on",
            "ssl_cert_file": key,
            "ssl_key_file": key,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        with running([str(programs[-1]), "-D", str(data), *options], port, user):
            yield port
