"""The package that a command starts: an option's value is never taken for it."""

import pytest

from study.advisor.catalog.commands import of_command
from study.advisor.catalog.records import RefusedError


@pytest.mark.parametrize(
    ("line", "key", "version"),
    [
        ("docker run --name mydb mcp/postgres", "oci:mcp/postgres", ""),
        ("docker run -i --rm -e API_KEY=sk-1 -v /a:/b -p 80:80 mcp/postgres:1.2 --key sk-2", "oci:mcp/postgres", "1.2"),
        ("docker run -itv /a:/b --rm=true --env=A=b mcp/x", "oci:mcp/x", ""),
        ("docker --context far container run -eA=b -- mcp/x", "oci:mcp/x", ""),
        ("/usr/bin/podman run --network host ghcr.io/a/b", "oci:ghcr.io/a/b", ""),
        ("npx -y @me/server@1.2.3 --registry internal", "npm:@me/server", "1.2.3"),
        ("npx --loglevel error --yes @me/server", "npm:@me/server", ""),
        ("npx -y -p @me/tools tool", "npm:@me/tools", ""),
        ("npx.cmd -- server", "npm:server", ""),
        ("cmd /c npx -y server@latest", "npm:server", ""),
        ("npm exec --yes -- server", "npm:server", ""),
        ("bunx --bun server", "npm:server", ""),
        ("pnpm dlx server", "npm:server", ""),
        ("deno run -A npm:@me/server@1.0.0", "npm:@me/server", "1.0.0"),
        ("uvx --python 3.12 pkg", "pypi:pkg", ""),
        ("uvx -p3.12 --with other==1 pkg==2.0", "pypi:pkg", "2.0"),
        ("uvx --from pkg==2.0 program", "pypi:pkg", "2.0"),
        ("uv tool run pkg@2.0", "pypi:pkg", "2.0"),
        ("pipx run --python 3.12 --spec pkg==2.0 program", "pypi:pkg", "2.0"),
    ],
)
def test_a_command_names_its_package(line, key, version):
    command, *words = line.split()
    made = of_command(command, words)
    assert (made.key, made.version) == (key, version)


def test_a_named_package_keeps_its_program():
    assert of_command("npx", ["-p", "@me/tools", "tool"]).binary == "tool"
    assert of_command("uvx", ["--from", "pkg", "pkg"]).binary == ""


@pytest.mark.parametrize(
    "line",
    [
        "npx --registry internal @me/server",  # a stranger may own the name in the public registry
        "npx --@me:registry=internal @me/server",
        "npx -c hunter2",
        "npx -p one -p two three",
        "npx --unknown hunter2 server",
        "npx -Z hunter2 server",
        "npx --package",
        "uvx --index-url https://user:hunter2@x.y/simple pkg",
        "uvx --from git+https://hunter2@github.com/a/b program",
        "docker exec -i mydb psql",
        "docker run --unknown hunter2 mcp/x",
        "docker run -e KEY=hunter2",
        "docker mcp gateway run",
        "uv run server.py",
        "deno run https://hunter2/x.ts",
        "node hunter2",
        "python -m server",
    ],
)
def test_what_is_not_known_is_refused_and_not_quoted(line):
    command, *words = line.split()
    with pytest.raises(RefusedError) as found:
        of_command(command, words)
    assert "hunter2" not in found.value.reason
