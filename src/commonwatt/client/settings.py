"""URL and token of the server, from arguments, the environment, or a file that only its owner can read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from commonwatt.data.files import load_yaml
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity

__all__ = ["ClientFile", "ClientSettings", "find_settings"]

DEFAULT_URL = "http://127.0.0.1:8470"
_TOKEN = re.compile(r"[!-~]{1,200}")


class ClientFile(FileModel):
    """``~/.config/commonwatt/client.yaml``."""

    url: str | None = quantity("URL of the server", "-", None)
    token: str | None = quantity("token", "-", None)


@dataclass(frozen=True)
class ClientSettings:
    """URL and token of the server."""

    url: str
    token: str | None

    def __repr__(self) -> str:
        return f"ClientSettings(url={self.url!r}, token={'***' if self.token else None})"


def find_settings(
    url: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None
) -> ClientSettings:
    """Return URL and token: the arguments, else ``COMMONWATT_URL`` and ``COMMONWATT_TOKEN``, else those in the file.

    Raises ``InputError`` on an invalid URL or token, and on a file that others can read.
    """
    env = os.environ if environment is None else environment
    url = url or env.get("COMMONWATT_URL") or None
    token = token or env.get("COMMONWATT_TOKEN") or None
    if url is None or token is None:
        file = _read(Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "~").expanduser() / ".config"))
        if url is None or url == file.url:  # a token is sent only to the server it is listed with
            url, token = url or file.url, token or file.token
    return ClientSettings(_checked(url or DEFAULT_URL), _checked_token(token))


def _read(folder: Path) -> ClientFile:
    path = folder / "commonwatt" / "client.yaml"
    try:
        mode = path.stat().st_mode
    except OSError:
        return ClientFile()
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(
            f"a file that only you can read (chmod 600 {path})", file=path, value=f"{stat.S_IMODE(mode):o}"
        )
    return load_yaml(path, ClientFile)


def _checked(url: str) -> str:
    expected = "a URL such as http://127.0.0.1:8470"
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise InputError(expected, field="url", value=url)
    if parts.username is not None:
        raise InputError(expected, field="url")
    return url.rstrip("/")


def _checked_token(token: str | None) -> str | None:
    if token is not None and not _TOKEN.fullmatch(token):
        raise InputError("a token as it was shown when it was created", field="token")
    return token
