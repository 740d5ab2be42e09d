"""One entry of one source, normalised and checked.

Every text of a registry is written by strangers. Texts are kept as data, within bounds and without control characters.
What a start command is made of (names of packages, versions, arguments, variables, addresses) must match a strict
pattern, or the package is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from study.base.errors import printable

_NPM = re.compile(r"(?:@[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_PYPI = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# Of a host: no hyphen at an end, 63 characters at most. Of an image: as the grammar of image references has it.
_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_OCI = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*")
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
# A host that ends so is read as an address of version 4, however it is written.
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
PACKAGES = {"npm": _NPM, "pypi": _PYPI, "oci": _OCI}
VERSIONS = {
    "npm": re.compile(r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?", re.ASCII),
    "pypi": re.compile(r"\d[\dA-Za-z.+]*"),
    "oci": re.compile(r"(?!latest$)\w[\w.-]{0,127}|sha256:[0-9a-f]{64}", re.ASCII),
}
# A word of a command: nothing that a shell of any system reads as more than a word; <name> is a value to fill in.
_WORD = re.compile(r"(?:[\w.,:/@=+~-]|<[A-Za-z][\w.-]*>)+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,127}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")
# Variables that steer the programs that start a server, and not the server: they would make these load other code, ask
# other servers, trust other certificates or read other settings.
_STEERING = re.compile(
    "|".join(
        (
            # the system, its loader and its shells
            r"(?:CD|LOC|NLS|GCONV_|PSMODULE)?PATH|PATHEXT|HOME|USERPROFILE|(?:LOCAL)?APPDATA|PROGRAMDATA|SYSTEMROOT|WINDIR",
            r"LD_.*|DYLD_.*|MALLOC_.*|GLIBC_TUNABLES|HOSTALIASES|RES_OPTIONS|RESOLV_HOST_CONF|LOCALDOMAIN|XDG_.*|ZDOTDIR",
            r"BASH_.*|BASHOPTS|SHELLOPTS|ENV|SHELL|COMSPEC|IFS|PROMPT_COMMAND|PS4|GLOBIGNORE|EDITOR|VISUAL|PAGER|BROWSER",
            # whom they ask and trust
            r"(?:HTTPS?|ALL|FTP|NO|SOCKS[45]?|WSS?|RSYNC)_PROXY|(?:REQUESTS|CURL|AWS)_CA_BUNDLE|SSL_CERT_(?:FILE|DIR)|SSLKEYLOGFILE",
            r"OPENSSL_.*|CURL_HOME|NETRC|WGETRC|SSH_(?:ASKPASS.*|AUTH_SOCK)|KRB5_CONFIG",
            # npx, uvx, docker and their like
            r"NODE|NODE_(?:OPTIONS|PATH|TLS_.*|EXTRA_CA_CERTS|USE_.*|REPL_.*|ICU_DATA|V8_COVERAGE|COMPILE_CACHE|REDIRECT_WARNINGS)",
            r"(?:NPM|NPX|YARN|PNPM|BUN|DENO|COREPACK|NVM|VOLTA|UV|UVX|PIP|PIPX|CONDA|PODMAN|BUILDX|BUILDKIT|COMPOSE|CONTAINERS)_.*",
            r"PYTHON(?!UNBUFFERED|IOENCODING|UTF8|DONTWRITEBYTECODE|HASHSEED|FAULTHANDLER)[A-Z0-9]*|VIRTUAL_ENV|PNPM_HOME",
            r"DOCKER_(?:HOST|CONFIG|CONTEXT|TLS.*|CERT_PATH|CONTENT_TRUST.*|API_VERSION|DEFAULT_PLATFORM|BUILDKIT|CLI_.*|AUTH_CONFIG)",
            r"CONTAINER_(?:HOST|SSHKEY|CONNECTION)|REGISTRY_AUTH_FILE",
            # git and other languages
            r"GIT_(?:SSH.*|SSL_.*|ASKPASS|EXEC_PATH|TEMPLATE_DIR|CONFIG.*|DIR|COMMON_DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY)",
            r"GIT_(?:ALTERNATE_.*|PROXY_COMMAND|EXTERNAL_DIFF|TRACE.*|ALLOW_PROTOCOL|PROTOCOL.*|HTTP_.*|(?:SEQUENCE_)?EDITOR|PAGER)",
            r"JAVA_(?:TOOL_OPTIONS|OPTS|HOME)|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|CLASSPATH|(?:MAVEN|GRADLE|SBT)_OPTS",
            r"RUBY(?:OPT|LIB|PATH|SHELL)|GEM_(?:HOME|PATH)|BUNDLE_.*|PERL(?:5.*|LIB|IO|_.*)|PHPRC|PHP_INI_SCAN_DIR|LUA_(?:INIT|C?PATH).*",
            r"GO(?:FLAGS|PROXY|ENV|SUMDB|PRIVATE|INSECURE|NOPROXY|NOSUMDB|TOOLCHAIN|PATH|ROOT)|CARGO_.*|RUST(?:UP_.*|FLAGS|C_.*)",
            r"DOTNET_(?:STARTUP_HOOKS|ROOT.*|ADDITIONAL_DEPS|SHARED_STORE)|CORECLR_.*|COMPLUS_.*|ERL_.*|R_(?:PROFILE|ENVIRON|LIBS).*|JULIA_.*",
        )
    ),
    re.IGNORECASE,
)
# Format characters: zero-width ones, changes of direction, tags. Joiners, soft hyphens and byte order marks do no harm.
_HARMLESS = re.compile("[\\u00ad\\u200d\\ufeff]")
_HIDDEN = re.compile("[\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2069\\U000e0000-\\U000e007f]")
_SEGMENT = re.compile(r"(?!\.{1,2}$)[\w.@-]+", re.ASCII)
# What a reader of hostile data may meet; a bug elsewhere is not hidden by it.
BAD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
Item = TypeVar("Item")
Made = TypeVar("Made")


class RefusedError(ValueError):
    """Why something of a source is not taken; `value`: what stands there, which may be a secret of the user's."""

    def __init__(self, reason: str, value: object = None) -> None:
        self.reason = reason
        super().__init__(reason if value is None else f"{reason}: {value!r:.80}")


class Refusal(NamedTuple):
    """One refused thing: the entry it belongs to, what it is (entry, package, tool, ...), and why."""

    source: str
    key: str
    what: str
    reason: str


@dataclass(frozen=True)
class Variable:
    """A variable of the environment, or a header; `value` is fixed or a default and may name <values> to fill in."""

    name: str
    required: bool = True
    secret: bool = False
    value: str = ""


@dataclass(frozen=True)
class Package:
    """A published package; `binary`: its program if it is not named as the package; `vouched`: see the sources;
    `failed`: whether the source tried to start it, in vain."""

    registry: str  # of `PACKAGES`
    identifier: str
    version: str = ""
    binary: str = ""
    arguments: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    vouched: bool = False
    failed: bool = False

    @property
    def key(self) -> str:
        """As `package_key`."""
        return package_key(self.registry, self.identifier)


@dataclass(frozen=True)
class Remote:
    """A server that runs elsewhere; `transport` is http or sse; `vouched` and `failed` as of `Package`."""

    transport: str
    url: str
    headers: tuple[Variable, ...] = ()
    vouched: bool = False
    failed: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What names it."""
        return self.transport, self.url


@dataclass(frozen=True)
class Tool:
    """Name and description of a tool."""

    name: str
    description: str = ""


@dataclass(frozen=True)
class Record:
    """One entry of one source; `key` names it there. Absent texts are empty, absent numbers None."""

    source: str
    key: str
    name: str
    description: str = ""
    repository: str = ""  # host/owner/name, lower case
    subfolder: str = ""
    repository_id: str = ""
    owns: bool = True  # whether the source takes the entry to belong to the repository's owner
    version: str = ""
    status: str = "active"  # active, deprecated or deleted
    licence: str = ""
    category: str = ""
    tags: tuple[str, ...] = ()
    official: bool = False
    stars: int | None = None
    updated: str = ""
    tools: tuple[Tool, ...] = ()
    packages: tuple[Package, ...] = ()
    remotes: tuple[Remote, ...] = ()

    def to_json(self) -> str:
        """The record as JSON, the same text for the same record."""
        return json.dumps(self, default=vars, sort_keys=True, ensure_ascii=False)

    @classmethod
    def of_json(cls, text: str) -> Record:
        """What `to_json` wrote."""
        value = json.loads(text)

        def variables(items: Iterable[Mapping[str, Any]]) -> tuple[Variable, ...]:
            return tuple(Variable(**item) for item in items)

        packages = tuple(
            Package(**item | {"arguments": tuple(item["arguments"]), "variables": variables(item["variables"])})
            for item in value["packages"]
        )
        remotes = tuple(Remote(**item | {"headers": variables(item["headers"])}) for item in value["remotes"])
        tools = tuple(Tool(**item) for item in value["tools"])
        parts = {"tags": tuple(value["tags"]), "tools": tools, "packages": packages, "remotes": remotes}
        return cls(**value | parts)


def sha256(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass
class Reader:
    """Reads values of one source's entries; collects what it refuses."""

    source: str
    text: int  # the most characters of a description
    most_tools: int  # of a server
    quoting: bool = True  # whether a refusal may quote the value
    refused: list[Refusal] = field(default_factory=list)

    def refuse(self, key: str, what: str, reason: object) -> None:
        """Note something refused, with safe and short words."""
        if not self.quoting and isinstance(reason, Exception):
            reason = getattr(reason, "reason", type(reason).__name__)
        self.refused.append(Refusal(self.source, printable(key)[:200], what, printable(str(reason))[:200]))

    def taken(self, key: str, what: str, items: Iterable[Item], make: Callable[[Item], Made]) -> tuple[Made, ...]:
        """What `make` gives for each item; one that it refuses or breaks on is noted, and the others stay."""
        results = []
        for item in items:
            try:
                results.append(make(item))
            except BAD as error:
                self.refuse(key, what, error)
        return tuple(results)

    def words(self, value: object, *, limit: int = 200, what: str = "text") -> str:
        """A text without control characters; RefusedError for another type or more than `limit` characters."""
        if value is None:
            return ""
        if not isinstance(value, (str, int, float)):
            raise RefusedError(f"the {what} is no text but {type(value).__name__}")
        if len(text := str(value)) > limit:
            raise RefusedError(f"the {what} has {len(text):,} characters, at most {limit:,}")
        # What is hidden from people but not from a model leaves a mark; joined emoji and line breaks are no trick.
        visible = _HIDDEN.sub("\ufffd", _HARMLESS.sub("", text))
        clean = visible if visible.replace("\n", "").isprintable() else printable(visible, keep="\n\ufffd")
        return clean.encode("utf-8", "replace").decode().strip()

    def description(self, value: object) -> str:
        """A description, within the longer bound."""
        return self.words(value, limit=self.text, what="description")

    def tool_list(self, key: str, values: object) -> tuple[Tool, ...]:
        """The tools among `values` (names, or mappings with name and description); others are refused one by one."""
        tools: dict[str, Tool] = {}
        for value in values if isinstance(values, list) else []:
            item = value if isinstance(value, dict) else {"name": value}
            try:
                tool = Tool(self.words(item.get("name")), self.description(item.get("description")))
                if not tool.name or len(tools) >= self.most_tools:
                    raise RefusedError("no name" if not tool.name else f"more than {self.most_tools} tools")
                tools.setdefault(tool.name, tool)
            except RefusedError as error:
                self.refuse(key, "tool", error)
        return tuple(tools.values())


def package_key(registry: str, identifier: str) -> str:
    """What names a package whatever its version; PyPI's names are equal up to case and separators."""
    name = identifier.removeprefix("docker.io/") if registry == "oci" else identifier
    return f"{registry}:{re.sub(r'[-_.]+', '-', name).lower() if registry == 'pypi' else name}"


def package(registry: object, identifier: object, version: object = "", **parts: Any) -> Package:
    """A checked package; RefusedError where a part of it could mean more than a name, a version or a word."""
    if registry not in PACKAGES:
        raise RefusedError("packages of this registry cannot be started here", registry)
    name, pinned = str(identifier or ""), str(version or "")
    if registry == "oci":
        name, pinned = _image(name, pinned)
    if len(name) > 214 or not PACKAGES[str(registry)].fullmatch(name):
        raise RefusedError(f"not a name of a package of {registry}", name)
    if pinned and not VERSIONS[str(registry)].fullmatch(pinned):
        raise RefusedError("not an exact version", pinned)
    result = Package(str(registry), name, pinned, **parts)
    for word in (*result.arguments, *filter(None, [result.binary])):
        command_word(word)
    return result


def _image(name: str, version: str) -> tuple[str, str]:
    """Name and version of an image, whose name may hold a tag or digest; `latest` is no version."""
    name, _, digest = name.partition("@")
    head, slash, tail = name.rpartition("/")
    tail, _, tag = tail.partition(":")
    version = digest or version or tag
    return f"{head}{slash}{tail}", "" if version == "latest" else version


def command_word(value: str) -> str:
    """A word of a command; RefusedError where a shell could read more in it."""
    if len(value) > 1000 or not _WORD.fullmatch(value):
        raise RefusedError("not a plain word", value)
    return value


def variable(
    name: object, *, header: bool = False, required: bool = True, secret: bool = False, value: object = ""
) -> Variable:
    """A checked variable or header; a value that is no plain word, or a secret's, is left to the user."""
    text = str(name or "")
    if not (_HEADER if header else _VARIABLE).fullmatch(text):
        raise RefusedError(f"not a name of a {'header' if header else 'variable'}", text)
    if not header and _STEERING.fullmatch(text):
        raise RefusedError(f"the variable {text} steers what starts the server, and not the server")
    default = str(value) if isinstance(value, (str, int, float)) and not secret else ""
    return Variable(text, required, secret, default if _WORD.fullmatch(default.removeprefix("Bearer ")) else "")


def remote(transport: object, url: object, headers: tuple[Variable, ...] = (), **marks: bool) -> Remote:
    """A checked address of a server: https, or http on this machine; {name} becomes <name>, a value to fill in."""
    kinds = {"streamable-http": "http", "http": "http", "streamable": "http", "sse": "sse"}
    text = re.sub(r"\$?\{(\w+)\}", r"<\1>", str(url or ""), flags=re.ASCII)
    if transport not in kinds:
        raise RefusedError("unknown transport", transport)
    if not re.fullmatch(r"https?://(?:[\w.,:/@=+~%?&-]|<\w+>)+", text, re.ASCII) or len(text) > 2000:
        raise RefusedError("not an address", text)
    parts = urlsplit(text)
    if "@" in parts.netloc or (parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1")):
        raise RefusedError("an address must use https and name no user", text)
    _require_host(text)
    return Remote(kinds[str(transport)], text, headers, **marks)


def _require_host(address: str) -> None:
    """RefusedError where an address has no host and port that could exist; nobody is asked."""
    filled = re.sub(r"<\w+>", "x", re.sub(r":<\w+>", ":1", address))
    try:
        parts = urlsplit(filled)
        host, sound = parts.hostname or "", parts.port != 0
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            ip_address(host)
        else:
            sound &= bool(_HOST.fullmatch(host))
    except ValueError:
        sound = False
    if not sound:
        raise RefusedError("not a host of an address", address)


def repository(url: object) -> tuple[str, str]:
    """``host/owner/name`` in lower case and the folder inside, of a repository's address; empty where it is none."""
    text = str(url or "").strip().removeprefix("git+")
    text = re.sub(r"^(?:git@|ssh://git@)([\w.-]+)[:/]", r"https://\1/", text)
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").removeprefix("www.")
    except ValueError:
        return "", ""
    segments = [segment for segment in parts.path.split("/") if segment]
    if host not in ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org") or len(segments) < 2:
        return "", ""
    segments[1] = segments[1].removesuffix(".git")
    if len(text) > 500 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        return "", ""
    inside = segments[4:] if segments[2:3] in (["tree"], ["blob"]) else []
    return f"{host}/{segments[0]}/{segments[1]}".lower(), "/".join(inside)
