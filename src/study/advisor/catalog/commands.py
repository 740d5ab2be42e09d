"""Which package a command starts: npx, uvx, docker and their like, whose options come before the package.

An option's value must not be taken for the package: a stranger who owns a package of that name would be run. So every
option is looked up here, and a command with one that is not known is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PureWindowsPath

from study.advisor.catalog.records import Package, RefusedError, package


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Runner:
    """A program that starts packages, and its options.

    `letters`: whether -it is -i -t, and -p3.12 an option with its value. Those without read --flag=word as the flag and
    a word, and after an option with a value still take a word with a dash for an option, or refuse it.
    """

    registry: str  # of `PACKAGES`
    flags: frozenset[str]  # without a value
    valued: frozenset[str]  # with a value, in the same word (``--name=value``, ``-e1``) or the next one
    named: frozenset[str] = frozenset()  # whose value is the package; the word after the options is then its program
    elsewhere: frozenset[str] = frozenset()  # after which a package comes from elsewhere, or no package is started
    orders: tuple[tuple[str, ...], ...] = ((),)  # the words that must stand before the package; of several ways one
    prefix: str = ""  # before a package's name
    letters: bool = True
    throughout: bool = False  # whether options are read behind the package, too, up to --


# Options whose values may begin with a dash all the same.
_DASHED = _names("-n --node-arg --npm --node-options=")
# As the programs' own sources have them. npx skips the word after every other --no-option, and npm takes it for the
# package.
_OF_NPM = _names(
    "-y --yes -q --quiet -s --silent -d --verbose --ignore-scripts --prefer-online --prefer-offline --offline"
    " --workspaces -ws --force -f"
)
_NPX = Runner(
    "npm",
    _OF_NPM | {"--no-install", "--ignore-existing"},
    _names(
        "-w --workspace --loglevel --cache --prefix --userconfig --globalconfig --fetch-timeout --fetch-retries --shell"
        " --script-shell --node-options -n --node-arg --npm"
    ),
    _names("-p --package"),
    _names("-c --call --registry"),
    letters=False,
)
_NPM = replace(
    _NPX,
    flags=_OF_NPM | _names("-n --no --no-audit --no-fund --no-progress --no-update-notifier"),
    valued=_NPX.valued - _names("-n --node-arg --npm"),
    named=_names("--package"),
    orders=(("exec",), ("x",)),
    throughout=True,
)
_PNPX = Runner(
    "npm",
    _names(
        "-y --yes -q --quiet -s --silent -d --verbose --ignore-scripts --prefer-offline --offline -w --workspace-root"
        " --ignore-workspace"
    ),
    _names("--reporter --loglevel -C --dir"),
    _names("--package"),
    _names("-c --shell-mode --registry"),
    letters=False,
)
_BUNX = Runner(
    "npm",
    _names("--bun -b --verbose --silent --no-install -y --yes"),
    frozenset(),
    _names("-p --package"),
    letters=False,
)
_UVX = Runner(
    "pypi",
    _names(
        "--isolated --offline --no-cache --no-cache-dir -n --refresh -q --quiet -v --verbose --native-tls"
        " --system-certs --no-progress --reinstall -U --upgrade --no-config --no-env-file --no-python-downloads"
        " --managed-python --no-build --no-managed-python --no-binary --no-sources --no-build-isolation"
        " --compile-bytecode --allow-python-downloads"
    ),
    _names(
        "-p --python -w --with --with-editable --with-requirements --cache-dir --directory --project --config-file"
        " --color --index-strategy --keyring-provider --resolution --prerelease --fork-strategy --exclude-newer"
        " --link-mode --refresh-package -P --upgrade-package --reinstall-package --no-build-package"
        " --no-binary-package --python-platform -C --config-setting --config-settings-package"
        " --no-build-isolation-package --env-file --allow-insecure-host -c --constraints -b --build-constraints"
        " --overrides --python-preference --torch-backend --no-sources-package --exclude-newer-package --python-fetch"
    ),
    _names("--from"),
    _names("--index --default-index -i --index-url --extra-index-url -f --find-links --no-index"),
)
_DOCKER = Runner(
    "oci",
    _names(
        "-i --interactive -t --tty --rm --init --privileged -d --detach --read-only -P --publish-all"
        " --no-healthcheck -q --quiet --sig-proxy --oom-kill-disable --disable-content-trust -D --debug --tls"
        " --tlsverify --use-api-socket"
    ),
    _names(
        "-e --env --env-file --name -v --volume --mount -p --publish --network --net --network-alias --net-alias"
        " -w --workdir -u --user --entrypoint --platform --pull -h --hostname --add-host --dns --dns-opt"
        " --dns-option --dns-search -l --label --label-file --link --link-local-ip --log-driver --log-opt"
        " --mac-address -m --memory --memory-reservation --memory-swap --memory-swappiness --cpus -c --cpu-shares"
        " --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime --cpuset-cpus"
        " --cpuset-mems --gpus --ip --ip6 --ipc --isolation --device --device-cgroup-rule --device-read-bps"
        " --device-read-iops --device-write-bps --device-write-iops --cap-add --cap-drop --cgroup-parent --cgroupns"
        " --cidfile --annotation -a --attach --blkio-weight --blkio-weight-device --detach-keys --domainname"
        " --expose --group-add --health-cmd --health-interval --health-retries --health-start-interval"
        " --health-start-period --health-timeout --io-maxbandwidth --io-maxiops --kernel-memory --oom-score-adj"
        " --pid --pids-limit --restart --runtime --security-opt --shm-size --stop-signal --stop-timeout"
        " --storage-opt --sysctl --tmpfs --ulimit --userns --uts --volume-driver --volumes-from --context --config"
        " -H --host --log-level --tlscacert --tlscert --tlskey"
    ),
    orders=(("run",), ("container", "run")),
)
_DENO = Runner(
    "npm",
    _names(
        "-A --allow-all -R --allow-read -W --allow-write -N --allow-net -E --allow-env -S --allow-sys --allow-run"
        " --allow-ffi -I --allow-import --allow-hrtime --deny-read --deny-write --deny-net --deny-env --deny-sys"
        " --deny-run --deny-ffi -q --quiet -r --reload --no-prompt --no-check --check --cached-only --no-lock"
        " --no-config --no-remote --frozen --node-modules-dir --vendor --unstable --watch --env-file -y --yes"
    ),
    _names("-c --config --import-map --cert --location --seed -L --log-level --conditions"),
    elsewhere=_names("--no-npm -p --package"),
    orders=(("run",), ("x",)),
    prefix="npm:",
)
RUNNERS = {
    "npx": _NPX,
    "npm": _NPM,
    "pnpx": _PNPX,
    "pnpm": replace(_PNPX, orders=(("dlx",),)),
    "yarn": Runner("npm", _names("-q --quiet"), frozenset(), _names("-p --package"), orders=(("dlx",),), letters=False),
    "bunx": _BUNX,
    "bun": replace(_BUNX, named=frozenset(), orders=(("x",),)),  # -p before x is --print
    "uvx": _UVX,
    "uv": replace(_UVX, orders=(("tool", "run"),)),
    "pipx": Runner(
        "pypi",
        _names("--no-cache -q --quiet -v --verbose --system-site-packages --fetch-missing-python"),
        _names("--python --with --backend --fetch-python"),
        _names("--spec"),
        _names("-i --index-url --pip-args --path --pypackages"),
        (("run",),),
    ),
    "docker": _DOCKER,
    "podman": _DOCKER,  # whose own options are refused, and those of nerdctl
    "nerdctl": _DOCKER,
    "deno": _DENO,
}


def of_command(command: str, words: Sequence[str]) -> Package:
    """The package that a command starts, without what follows it, which may be secret.

    Raises RefusedError: another program, an option that is not known, or a package from elsewhere than its registry.
    """
    program = PureWindowsPath(command).stem.lower()  # takes the paths of both systems, and npx.cmd
    if program == "cmd" and len(words) > 1 and words[0].lower() == "/c":
        return of_command(words[1], words[2:])
    if (runner := RUNNERS.get(program)) is None:
        raise RefusedError(f"only packages started by {', '.join(RUNNERS)} are kept", program)
    named, rest = _options(program, runner, list(words))
    order = next((order for order in runner.orders if tuple(rest[: len(order)]) == order), None)
    if order is None:
        raise RefusedError(
            f"{program} is not told to {' or '.join(' '.join(order) for order in runner.orders)} a package"
        )
    rest = rest[len(order) :]
    if len(named) > 1 or not (named or rest):
        raise RefusedError(f"{program} is given {'several packages' if named else 'no package'}")
    name, version = (named or rest)[0], ""
    if not name.startswith(runner.prefix):
        raise RefusedError(f"{program} is given no package of {runner.registry}")
    name = name.removeprefix(runner.prefix)
    if runner.registry == "npm" and "@" in name[1:]:
        name, _, version = name.rpartition("@")
    elif runner.registry == "pypi":
        name, version = (*re.split(r"==|@", name, maxsplit=1), "")[:2]
    binary = rest[0] if named and rest and rest[0] != name.rpartition("/")[2] else ""
    return package(runner.registry, name, "" if version == "latest" else version, binary=binary)


def _options(program: str, runner: Runner, words: list[str]) -> tuple[list[str], list[str]]:
    """The values of `Runner.named`, and other words up to the package, or where options end."""
    named: list[str] = []
    rest: list[str] = []
    # Behind the package, or the program of a named one, come the server's own words.
    while words and (runner.throughout or (len(rest) < 4 and not (rest and tuple(rest[:-1]) in runner.orders))):
        word = words.pop(0)
        if word == "--":
            return named, [*rest, *words[:1]]
        if word in ("true", "false", "null"):
            raise RefusedError(f"{word} may be the value of an option of {program}, or the package")
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, joined, value = word.partition("=")
        known = runner.flags | runner.valued | runner.named | runner.elsewhere
        if runner.letters and not word.startswith("--") and name not in known:
            name, joined, value = _short(runner, word)
        if name in runner.elsewhere or name.endswith(":registry"):
            raise RefusedError(f"after {name}, {program} starts something else than a package of {runner.registry}")
        if name in runner.valued | runner.named:
            if not joined and not words:
                raise RefusedError(f"{name} of {program} lacks its value")
            value = value if joined else words.pop(0)
            dashed = value.startswith("-") and (name + joined not in _DASHED or not value.strip("-"))
            if dashed and not runner.letters:
                raise RefusedError(f"the word after {name} may be its value, or another option of {program}")
            named += [value] if name in runner.named else []
        elif name not in runner.flags:
            option = f" {name}" if re.fullmatch(r"--[a-z][a-z-]{1,40}", name) else ""
            raise RefusedError(f"the option{option} of {program} is not known, so the package is not, either")
        elif joined and not runner.letters:
            raise RefusedError(f"{name} of {program} takes no value, so it may be the package")
    return named, rest


def _short(runner: Runner, word: str) -> tuple[str, str, str]:
    """The last option of letters that stand together (-it, -itv), and whether a value follows in the same word."""
    for position in range(1, len(word)):
        name = f"-{word[position]}"
        if name in runner.flags:
            continue
        if name in runner.valued | runner.elsewhere:
            return name, word[position + 1 :], word[position + 1 :].removeprefix("=")
        return word, "", ""
    return f"-{word[-1]}", "", ""
