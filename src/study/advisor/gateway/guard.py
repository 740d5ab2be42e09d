"""A program that runs one MCP server for a host and never outlives it. Standard library only, so it starts at once.

``python -I -S guard.py BYTES PROGRAM ARGUMENT ...`` passes standard input and output through. It ends its whole process
group, the server and what the server started, when the host closes its end or dies in any way, when the server ends,
and when a message is longer than BYTES. It swallows what the server writes to standard error, and says at the end why
it ended, with the last of these words.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

CHUNK, TAIL = 65_536, 4_000  # bytes read at once; bytes of standard error that are kept
LAST_WORDS = "its last words:"
GRACE, WATCH = 1.0, 0.5  # seconds: for a server to end by itself; between two looks at the host


class Guard:
    """The server's process with its three streams."""

    def __init__(self, limit: int, command: list[str]) -> None:
        self.limit, self.tail, self.host = limit, b"", os.getppid()
        self.closing = False  # the host wants to stop
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)  # noqa: S603

    def end(self, reason: str) -> None:
        """Say why, unless the host wished it, and end the whole process group, which this program leads."""
        words = self.tail.decode("utf-8", "replace").strip()
        said = f"{reason}; {LAST_WORDS} {words}" if words else reason
        try:
            os.write(2, b"" if self.closing else said.encode())
        finally:
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
            # Windows has no groups of this kind, but knows who started whom.
            kill = ["taskkill", "/T", "/F", "/PID", str(self.server.pid)]
            try:
                subprocess.run(kill, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
            except OSError:
                self.server.kill()
            os._exit(1)

    def to_server(self) -> None:
        """Standard input; its end is the host's wish to stop."""
        assert self.server.stdin is not None
        try:
            while chunk := os.read(0, CHUNK):
                left = memoryview(chunk)
                while left:
                    left = left[os.write(self.server.stdin.fileno(), left) :]
        except OSError:
            return  # the server has closed its end; what follows from that shows on its output
        self.closing = True
        self.server.stdin.close()
        time.sleep(GRACE)
        self.end("closed")

    def watch(self) -> None:
        """End when the host is gone, even where the server reads nothing."""
        while os.getppid() == self.host:
            time.sleep(WATCH)
        self.end("the host is gone")

    def hear(self) -> None:
        """Keep the end of what the server writes to standard error."""
        assert self.server.stderr is not None
        while chunk := os.read(self.server.stderr.fileno(), CHUNK):
            self.tail = (self.tail + chunk)[-TAIL:]

    def run(self) -> None:
        """Pass the server's messages on, one a line, until it or the host ends."""
        listener = threading.Thread(target=self.hear, daemon=True)
        for thread in (
            listener,
            *(threading.Thread(target=part, daemon=True) for part in (self.to_server, self.watch)),
        ):
            thread.start()
        assert self.server.stdout is not None
        length = 0
        while chunk := os.read(self.server.stdout.fileno(), CHUNK):
            head, border, _ = chunk.partition(b"\n")
            if length + len(head) > self.limit:
                self.end(f"a message is longer than {self.limit} bytes")
            length = len(chunk) - chunk.rfind(b"\n") - 1 if border else length + len(chunk)
            left = memoryview(chunk)
            while left:
                left = left[os.write(1, left) :]
        try:
            code: int | str = self.server.wait(GRACE)
        except subprocess.TimeoutExpired:
            code = "none: it closed its output"
        listener.join(GRACE / 2)
        self.end(f"the program ended (exit code {code})")


def main(limit: str, *command: str) -> None:
    """Run a command under the guard; a program that cannot be started is said on standard error."""
    if hasattr(os, "setpgrp") and os.getpgrp() != os.getpid():
        os.setpgrp()  # the group that is ended must be no one else's
    try:
        guard = Guard(int(limit), list(command))
    except OSError as error:
        sys.exit(f"the program cannot be started: {error}")
    try:
        guard.run()
    except OSError:
        guard.end("the host no longer reads")


if __name__ == "__main__":
    main(*sys.argv[1:])
