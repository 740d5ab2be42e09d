"""The servers that the configuration of an MCP client names."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from study.advisor.catalog.commands import of_command
from study.advisor.catalog.records import RefusedError
from study.base import paths
from study.base.errors import StudyError, require_file, require_one_of, without_secrets
from study.base.files import local_salt, require_regular, strangers_json

# The key of most clients, and that of VS Code.
KEYS = ("mcpServers", "servers")
FIX = 'use {"mcpServers": {NAME: {"command": ..., "args": [...]} or {"url": ...}}}'
# What clients write in `type`, and the transport that it means.
TRANSPORTS = {"stdio": "stdio", "sse": "sse"} | dict.fromkeys(("http", "streamable-http", "streamableHttp"), "http")
# Of `Endpoint.secrets`: what is never one.
SHORTEST, SCHEMES = 4, ("Bearer", "Basic", "Token", "token")
PATH = re.compile(r"~?[\\/]|\.{1,2}[\\/]|[A-Za-z]:[\\/]|.*\.(?:[cm]?[jt]s|py|jar|json|ya?ml|toml)$")
PLAIN = re.compile(r"[a-z][a-z_-]{0,19}")
# Of the environment, what a program gets beside HOME, PATH, SHELL, TERM and USER: how the network is reached, whom it
# trusts, language, time, folders, and where containers run. What an entry says wins.
PASSED = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
)
# ${NAME}, ${env:NAME} (VS Code), ${NAME:-default} (Claude Code). A default may hold such variables again, so deep.
NESTED = 9
_DEFAULT = r"[^{}]*"
for _ in range(NESTED):
    _DEFAULT = rf"(?:[^{{}}]|\$\{{{_DEFAULT}\}})*"
VARIABLE = re.compile(rf"\$\{{(?:env:)?([^${{}}:]+)(?::-({_DEFAULT}))?\}}")


@dataclass(frozen=True)
class Endpoint:
    """How to reach one server: a program on this machine (stdio), or an address (http: streamable HTTP; sse)."""

    name: str = field(compare=False)  # equal ones start the same program, or name the same address, in the same way
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: str = "stdio"
    aliases: tuple[str, ...] = field(default=(), compare=False)  # other names for the same program or address

    @cached_property
    def environment(self) -> dict[str, str]:
        """What the program gets of the environment (`PASSED`), and what its entry says."""
        shared = {name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in PASSED)}
        return {name: os.environ[name] for name in sorted(shared)} | dict(self.env)

    @cached_property
    def program(self) -> str:
        """What is started or asked, by which it is known again on this machine: arguments may be secret, so salted."""
        identity = json.dumps([self.command, self.args, self.cwd, self.url, self.transport])
        salt = local_salt(paths.root() / "data" / "tools" / "salt")
        return hashlib.sha256(salt + identity.encode("utf-8", "replace")).hexdigest()

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """What of the entry may be secret, in every form in which a message may quote it, longest first."""
        values = [*self.env.values(), *self.headers.values(), *self._arguments()]
        if self.url is not None:
            parts = urlsplit(self.url)
            values += [parts.query, *(value for _, value in parse_qsl(parts.query)), parts.fragment]
        for address in (self.url or "", *self.environment.values()):  # a proxy has a password, too
            user = address.partition("://")[2].rpartition("@")[0]
            values += [user, *map(unquote, user.split(":", 1))]
        values += [piece for value in values for piece in value.split() if piece not in SCHEMES]
        forms = {form for value in values for form in (value, value.strip(), repr(value)[1:-1], quote(value, safe=""))}
        forms |= {json.dumps(value)[1:-1] for value in values}
        return tuple(sorted((form for form in forms if len(form) >= SHORTEST), key=len, reverse=True))

    def _arguments(self) -> Iterator[str]:
        """Words of the command that are no option, no path of this machine, no plain word and not the package."""
        package = ""
        with suppress(RefusedError):
            package = of_command(self.command or "", self.args).identifier
        for before, word in pairwise(("", *self.args)):
            name, joined, value = word.partition("=")
            if package and package in word:
                continue
            if joined and re.fullmatch(r"-{0,2}\w[\w.-]*", name):
                yield value
            elif not (word.startswith("-") or PATH.match(word) or (before[:1] != "-" and PLAIN.fullmatch(word))):
                yield word

    def masked(self, text: str) -> str:
        """A text about this server without `secrets`."""
        if self.url is not None:
            text = text.replace(self.url, without_secrets(self.url))
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def read_config(*paths: Path) -> list[Endpoint]:
    """The servers of client configurations, without disabled ones. Equal entries are one server; the later names become
    its aliases. Lists of tools do not decide that: one program on two folders lists the same tools twice. StudyError:
    not such a file, one name for two servers, or a variable that the environment lacks."""
    endpoints: dict[str, Endpoint] = {}
    for path in paths:
        for endpoint in _read(path):
            same = next((other for other in endpoints.values() if other == endpoint), None)
            if same is not None:
                names = dict.fromkeys((*same.aliases, endpoint.name))
                names.pop(same.name, None)
                endpoints[same.name] = replace(same, aliases=tuple(names))
            elif endpoint.name in endpoints:
                raise StudyError("a name for two servers", file=path, column=endpoint.name, fix="rename one of them")
            else:
                endpoints[endpoint.name] = endpoint
    if not endpoints:
        raise StudyError("every server is disabled", file=paths[0], fix="enable one")
    return list(endpoints.values())


def _read(path: Path) -> list[Endpoint]:
    require_file(path, f"name a file; {FIX}", "there is no such client configuration")
    require_regular(path)
    try:
        value = strangers_json(path.read_bytes())
    except ValueError as error:
        raise StudyError(f"not valid JSON ({error})", file=path, fix=FIX) from error
    servers = next((value[key] for key in KEYS if key in value), None) if isinstance(value, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise StudyError("names no servers", file=path, column=" or ".join(KEYS), fix=FIX)
    off = {name for name, entry in servers.items() if isinstance(entry, dict) and entry.get("disabled") is True}
    off |= {name for name, entry in servers.items() if isinstance(entry, dict) and entry.get("enabled") is False}
    return [_endpoint(name, entry, path) for name, entry in servers.items() if name not in off]


def _endpoint(name: str, entry: Any, path: Path) -> Endpoint:
    if not isinstance(entry, dict) or ("command" in entry) == ("url" in entry):
        raise StudyError("needs either a command or a url", file=path, column=name, fix=FIX)
    command, url, cwd, given = (entry.get(key) for key in ("command", "url", "cwd", "args"))
    for key, kind, form in (("args", list, "a list"), ("env", dict, "an object"), ("headers", dict, "an object")):
        if entry.get(key) is not None and not isinstance(entry[key], kind):
            raise StudyError(f"{key} must be {form} of texts", file=path, column=f"{name}.{key}", fix=FIX)
    env, headers = (entry.get(key) or {} for key in ("env", "headers"))
    args = given or []
    texts = [command if "command" in entry else url, cwd or "", *args, *env.values(), *headers.values()]
    if not all(isinstance(text, str) for text in texts):
        raise StudyError("every part of a server must be a text", file=path, column=name, fix=FIX)

    def filled(text: str) -> str:
        return VARIABLE.sub(value_of, text)

    def value_of(match: re.Match[str]) -> str:
        """The variable's value as it is, or else its default, filled."""
        variable, default = match.groups()
        if variable in os.environ:
            return os.environ[variable]
        if default is None:
            reason, fix = f"the environment lacks {variable!r:.80}", "set this variable, or write its value"
            raise StudyError(reason, file=path, column=name, fix=fix)
        return filled(default)

    command, url, cwd = (None if text is None else filled(text) for text in (command, url, cwd))
    env, headers = ({key: filled(text) for key, text in mapping.items()} for mapping in (env, headers))
    if url is not None and not url.startswith(("http://", "https://")):
        raise StudyError("the address must begin with http:// or https://", file=path, column=name, fix=FIX)
    return Endpoint(name, command, tuple(map(filled, args)), env, cwd, url, headers, _transport(entry, url, path, name))


def _transport(entry: Mapping[str, Any], url: str | None, path: Path, name: str) -> str:
    """The stated transport; without one, an address that ends in /sse speaks the older HTTP with server-sent events."""
    stated = entry.get("type", entry.get("transport"))
    if stated is not None:
        require_one_of(stated, "transport", TRANSPORTS, file=path, column=name)
        if (TRANSPORTS[stated] == "stdio") != (url is None):
            raise StudyError(f"{stated!r} does not fit to its command or url", file=path, column=name, fix=FIX)
        return TRANSPORTS[stated]
    if url is None:
        return "stdio"
    return "sse" if url.split("?")[0].rstrip("/").endswith("/sse") else "http"
