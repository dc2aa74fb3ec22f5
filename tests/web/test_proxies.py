"""The page behind real proxies, with the configurations of docs/pages/deployment.md."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from links import free_port
from web_client import Answer, asking, connected, picture, rest, until_seen, upgrade

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin"
DEPLOYMENT = Path(__file__).parents[2] / "docs" / "pages" / "deployment.md"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not DEPLOYMENT.exists(), reason="needs the documentation"),
]

# These go around the documentation's part.  All of nginx's files are in one folder.
AROUND_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    {server}
}}
"""
AROUND_CADDY = """
{{
    admin off
    auto_https disable_redirects
    default_bind 127.0.0.1
}}
{server}
"""


def nginx(folder: Path, server: str, port: int) -> AbstractAsyncContextManager[None]:
    config = folder / "nginx.conf"
    config.write_text(AROUND_NGINX.format(folder=folder, server=server))
    options = ["-p", str(folder), "-c", str(config), "-e", "stderr"]
    return proxy("nginx", options, folder, port)


def caddy(folder: Path, server: str, port: int) -> AbstractAsyncContextManager[None]:
    config = folder / "Caddyfile"
    config.write_text(AROUND_CADDY.format(server=server))
    options = ["run", "--adapter", "caddyfile", "--config", str(config)]
    return proxy("caddy", options, folder, port)


@asynccontextmanager
async def proxy(
    name: str, options: list[str], folder: Path, port: int
) -> AsyncIterator[None]:
    """Run a proxy until the end of the block, with its files in this folder."""
    program = shutil.which(name, path=WHERE)
    if program is None:
        pytest.skip(f"needs {name}")
    home = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with subprocess.Popen([program, *options], env=home) as process:  # noqa: ASYNC220
        try:
            while True:
                assert process.poll() is None
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    await anyio.sleep(0.02)
            yield
        finally:
            process.terminate()


class At:
    """Where the proxy is."""

    prefix = "/tv"

    def __init__(self, port: int) -> None:
        self.port = port


def nginx_config(port: int, folder: Path) -> str:
    found = re.search(r"```nginx\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL)
    assert found is not None
    text = found[1].replace("listen 443", f"listen 127.0.0.1:{port}")
    return text.replace("/etc/ssl/", f"{folder}/")


def caddy_config(port: int, folder: Path) -> str:
    """Name our own certificate, as no authority can be asked for one here."""
    found = re.search(r"```caddy\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL)
    assert found is not None
    site = f"https://tv.example.org:{port} {{\n    tls {folder}/tv.crt {folder}/tv.key"
    return found[1].replace("tv.example.org {", site)


@pytest.mark.parametrize(
    ("proxy", "config"), [(nginx, nginx_config), (caddy, caddy_config)]
)
async def test_the_configuration_of_the_documentation(
    hub: Broadcast,
    tmp_path: Path,
    proxy: Callable[[Path, str, int], AbstractAsyncContextManager[None]],
    config: Callable[[int, Path], str],
) -> None:
    """TLS, a prefix, the public name, a cookie and a WebSocket work."""
    trustme = pytest.importorskip("trustme")
    authority, to = trustme.CA(), At(free_port())
    certificate = authority.issue_cert("localhost", "tv.example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tv.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tv.key")
    import ssl

    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with web.serve(hub, token="a", hosts=["tv.example.org"]) as server:
        text = config(to.port, tmp_path).replace("8000", str(server.port))
        async with proxy(tmp_path, text, to.port):
            host = f"Host: tv.example.org:{to.port}"

            async def ask(path: str, *fields: str) -> Answer:
                asked = asking(f"/tv{path}", host, "Connection: close", *fields)
                async with connected(to, trust) as stream:
                    await stream.send(asked)
                    return Answer(await rest(stream))

            link = await ask("/?token=a", "Accept: text/html")
            assert (link.status, link.headers["location"]) == (303, "./")
            cookie = f"Cookie: {link.headers['set-cookie'].partition(';')[0]}"
            page = await ask("/", cookie)
            assert (page.status, b"<html" in page.body) == (200, True)
            assert (await ask("/status")).status == 401
            async with connected(to, trust) as stream:
                origin = f"Origin: https://tv.example.org:{to.port}"
                await stream.send(upgrade("/tv/raw", host, origin, cookie))
                seen = await until_seen(stream, b"\r\n\r\n")
                assert Answer(seen).status == 101
                await hub.publish(picture())
                await until_seen(stream, picture().tobytes()[-99:])
