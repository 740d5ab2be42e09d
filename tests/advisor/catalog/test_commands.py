"""The package that a command starts: an option's value is never taken for it."""

import pytest

from study.advisor.catalog.commands import of_command
from study.advisor.catalog.records import RefusedError

# What is started (registry:name version) by which commands.
STARTED = """
oci:mcp/postgres < docker run --name mydb mcp/postgres
oci:mcp/postgres 1.2 < docker run -i --rm -e API_KEY=sk-1 -v /a:/b -p 80:80 mcp/postgres:1.2 --key sk-2
oci:mcp/x < docker run -itv /a:/b --rm=true --env=A=b mcp/x
oci:mcp/x < docker --context far container run -eA=b -- mcp/x
oci:ghcr.io/a/b < /usr/bin/podman run --network host ghcr.io/a/b
npm:@me/server 1.2.3 < npx -y @me/server@1.2.3 --registry internal
npm:@me/server < npx --loglevel error --yes @me/server
npm:@me/tools < npx -y -p @me/tools tool
npm:server < npx.cmd -- server
npm:server < cmd /c npx -y server@latest
npm:server < npm exec --yes -- server
npm:server < bunx --bun server
npm:server < pnpm dlx server
npm:@me/server 1.0.0 < deno run -A npm:@me/server@1.0.0
pypi:pkg < uvx --python 3.12 pkg
pypi:pkg 2.0 < uvx -p3.12 --with other==1 pkg==2.0
pypi:pkg 2.0 < uvx --from pkg==2.0 program
pypi:pkg 2.0 < uv tool run pkg@2.0
pypi:pkg 2.0 < pipx run --python 3.12 --spec pkg==2.0 program
"""
# A stranger may own a name of an internal registry in the public one.
UNKNOWN = """
npx --registry internal @me/server
npx --@me:registry=internal @me/server
npx -c hunter2
npx -p one -p two three
npx --unknown hunter2 server
npx -Z hunter2 server
npx --package
uvx --index-url https://user:hunter2@x.y/simple pkg
uvx --from git+https://hunter2@github.com/a/b program
docker exec -i mydb psql
docker run --unknown hunter2 mcp/x
docker run -e KEY=hunter2
docker mcp gateway run
uv run server.py
deno run https://hunter2/x.ts
node hunter2
python -m server
"""


@pytest.mark.parametrize("line", STARTED.strip().splitlines())
def test_a_command_names_its_package(line):
    (package, *version), (command, *words) = (part.split() for part in line.split(" < "))
    made = of_command(command, words)
    assert (made.key, made.version) == (package, "".join(version))
    assert made.binary == ("tool" if "tool" in words[-1:] else "program" if "program" in words[-1:] else "")


def test_a_program_named_as_its_package_is_no_other():
    assert of_command("uvx", ["--from", "pkg", "pkg"]).binary == ""


@pytest.mark.parametrize("line", UNKNOWN.strip().splitlines())
def test_what_is_not_known_is_refused_and_not_quoted(line):
    command, *words = line.split()
    with pytest.raises(RefusedError) as found:
        of_command(command, words)
    assert "hunter2" not in found.value.reason
