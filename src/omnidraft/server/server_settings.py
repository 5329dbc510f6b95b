"""Settings of the server: its address, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import gethostname
from typing import Any

import psutil

from omnidraft.config import Settings, integer, number, shown
from omnidraft.errors import ConfigError

LOCAL = "localhost"
# what containers call the machine that they run on
CONTAINERS = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
ANY = ("0.0.0.0", "::")  # noqa: S104  a client that connects to these reaches its own machine
# origins that no web page has: schemes of desktop programs, and Tauri's names on Windows
SCHEMES = ("app://", "file://", "tauri://", "vscode-file://", "vscode-webview://")
PROGRAMS = (*SCHEMES, "http://tauri.localhost", "https://tauri.localhost")
MEGABYTE = 2**20


def _host(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.:-]+", value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a name or an address: use 127.0.0.1", option=name)
    return value


def _keys(name: str, value: Any) -> tuple[str, ...]:
    keys = (value,) if isinstance(value, str) else value
    if not isinstance(keys, Sequence) or not all(isinstance(k, str) and re.fullmatch("[!-~]+", k) for k in keys):
        raise ConfigError(
            f"{name} must be ASCII letters, digits and signs, without white space: choose another", option=name
        )
    return tuple(dict.fromkeys(keys))


def _origins(name: str, value: Any) -> tuple[str, ...]:
    origins = (value,) if isinstance(value, str) else value
    if not isinstance(origins, Sequence):
        raise ConfigError(f'{name} is {shown(value)}; it must be a list: use ["http://localhost:3000"]', option=name)
    for each in origins:
        if not isinstance(each, str) or not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[\w.:\[\]-]*", each):
            raise ConfigError(
                f"{name} holds {shown(each)}; an origin is a scheme and a host: use http://localhost:3000, "
                "or moz-extension:// for a whole scheme",
                option=name,
            )
    return tuple(origins)


def _hosts(name: str, value: Any) -> tuple[str, ...]:
    hosts = (value,) if isinstance(value, str) else value
    if not isinstance(hosts, Sequence):
        raise ConfigError(f'{name} is {shown(value)}; it must be a list: use ["my-machine.lan"]', option=name)
    return tuple(_host(name, each).lower() for each in hosts)


def _folder(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {shown(value)}; it must be the path of a folder: use ./cache", option=name)
    return value


def _own(default: Any, about: str, check: Any, none: str | None = None) -> Any:
    return field(default=default, metadata={"help": about, "check": check, "none": none})


@dataclass(frozen=True, kw_only=True)
class Serving(Settings):
    """The server's address, key and limits; raises ConfigError for an open address without a key."""

    host: str = _own("127.0.0.1", "address to listen on; one that other machines reach needs an API key", _host)
    port: int = integer(8080, "port to listen on; 0 is any free one", low=0, high=65535, fix="use 8080")
    api_key: tuple[str, ...] | str | None = _own(None, "required API key, or the keys of several users", _keys, "none")
    cors_origin: tuple[str, ...] = _own(
        (),
        "origin of web pages that may use the server; * allows all, moz-extension:// all of that scheme",
        _origins,
    )
    allowed_host: tuple[str, ...] = _own((), "name that requests may have for this machine, such as a LAN's", _hosts)
    lanes: int = integer(8, "answers of one target generated at once", low=1, high=256, fix="use 8")
    max_queue: int = integer(64, "requests that may wait; more are answered with 429", low=0, fix="use 64")
    max_tokens: int = integer(4096, "maximum tokens of an answer", low=1, fix="use 4096")
    max_prompt_tokens: int | None = integer(
        None, "maximum tokens of a prompt", low=1, none="what the target holds", fix="leave it out"
    )
    max_body_mb: float = number(32, "maximum size of a request in MB", low=0.001, high=1024, fix="use 32")
    body_timeout_s: float = number(30, "seconds to receive a request in", low=0.1, high=3600, fix="use 30")
    max_cache_mb: float | None = number(
        None,
        "memory of all KV caches in MB; beyond it what was used longest ago is dropped, and requests wait",
        low=0,
        none="a quarter of the machine's memory, at most half of what is free",
        fix="use 4096",
    )
    cache_dir: str | None = _own(
        None,
        "folder that keeps what was read of prompts, for later runs: it tells what users wrote",
        _folder,
        "none",
    )
    cache_gb: float = number(8, "size of that folder in GB, at most", low=0.001, fix="use 8")
    timeout_s: float = number(
        600, "time limit for an answer in seconds, queueing included", low=0.1, high=86400, fix="use 600"
    )
    drain_timeout_s: float = number(30, "seconds that running answers get at shutdown", low=0, high=3600, fix="use 30")
    save_every_s: float = number(60, "seconds between checks whether profiles need saving", low=0.1, fix="use 60")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.loopback and not self.api_key:
            raise ConfigError(
                f"host is {self.host!r}, which others may reach, and there is no API key: "
                "give --api-key (or OMNIDRAFT_API_KEY), or use 127.0.0.1",
                option="api_key",
            )

    @property
    def origins(self) -> str:
        """A pattern of the origins that may use the server."""
        return "|".join(
            ".*" if each == "*" else re.escape(each) + (".*" if each.endswith("://") else "")
            for each in (*PROGRAMS, *self.cors_origin)
        )

    def circle(self, key: int) -> bytes:
        """The name of those who may share what is read of a prompt: whoever has the API key of this place, or all."""
        keys = (self.api_key,) if isinstance(self.api_key, str) else self.api_key
        return keys[key].encode() if keys else b""

    def cache_bytes(self, held: int = 0) -> int:
        """The limit of all KV caches in bytes, of which `held` are there."""
        given = self.max_cache_mb
        if given is not None:
            return int(given * MEGABYTE)
        memory = psutil.virtual_memory()
        return int(min(memory.total / 4, (memory.available + held) / 2))

    @property
    def loopback(self) -> bool:
        """True where only this machine reaches the server."""
        return is_loopback(self.host)


def is_local(name: str) -> bool:
    """True for a name of this machine that no public one can be."""
    name, host = name.lower().removesuffix("."), gethostname().lower()
    return is_loopback(name) or name.endswith(f".{LOCAL}") or name in CONTAINERS or (name == host and "." not in host)


def is_loopback(host: str) -> bool:
    """True for the names and addresses of this machine alone; a name that could be another's is none of them."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host.lower() == LOCAL
