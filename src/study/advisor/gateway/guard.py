"""A program that runs one MCP server for a host and never outlives it. Standard library only, so it starts at once.

``python -I -S guard.py BYTES PROGRAM ARGUMENT ...`` passes standard input and output through. It ends the server and
what the server started, when the host closes its end or dies in any way, when the server ends, and when a message is
longer than BYTES: on Linux also what has left its group and its parent (`setsid`, two forks), elsewhere its process
group. It swallows what the server writes to standard error, and says at the end why it ended, with the last of these
words.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

CHUNK, TAIL = 65_536, 4_000  # bytes read at once; bytes of standard error that are kept
# A backslash, a whole pair, or (the group) half of one.
ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
LAST_WORDS = "its last words:"
GRACE, WATCH = 1.0, 0.5  # seconds: for a server to end by itself; between two looks at the host
ENDING = 3.0  # seconds within which everything must be gone
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux: whoever loses its parent becomes this program's child


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
        message = f"{reason}; {LAST_WORDS} {words}" if words else reason
        try:
            os.write(2, b"" if self.closing else message.encode())
        finally:
            until = time.monotonic() + ENDING
            while (left := descendants()) and time.monotonic() < until:
                for number in left:
                    with suppress(OSError):
                        os.kill(number, signal.SIGKILL)
                time.sleep(0.01)
                with suppress(OSError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
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
                write(self.server.stdin.fileno(), chunk)
        except OSError:
            return  # the server has closed its end; what follows from that shows on its output
        self.closing = True
        self.server.stdin.close()
        time.sleep(GRACE)
        self.end("closed")

    def watch(self) -> None:
        """End when the host is gone, even where the server reads nothing; let go of what has ended meanwhile."""
        while os.getppid() == self.host:
            time.sleep(WATCH)
            with suppress(OSError, AttributeError):  # no child has ended; a system without this call
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None and ended.si_pid != self.server.pid:
                    os.waitpid(ended.si_pid, os.WNOHANG)
        self.end("the host is gone")

    def hear(self) -> None:
        """Keep the end of what the server writes to standard error."""
        assert self.server.stderr is not None
        while chunk := os.read(self.server.stderr.fileno(), CHUNK):
            self.tail = (self.tail + chunk)[-TAIL:]

    def run(self) -> None:
        """Pass the server's messages on, one a line, until it or the host ends."""
        threads = [threading.Thread(target=part, daemon=True) for part in (self.hear, self.to_server, self.watch)]
        for thread in threads:
            thread.start()
        assert self.server.stdout is not None
        held = bytearray()
        while chunk := os.read(self.server.stdout.fileno(), CHUNK):
            end = chunk.find(b"\n")
            if len(held) + (len(chunk) if end < 0 else end) > self.limit:
                self.end(f"a message is longer than {self.limit} bytes")
            held += chunk
            if end >= 0:
                whole = held.rfind(b"\n") + 1
                write(1, mended(bytes(held[:whole])))
                del held[:whole]
        write(1, bytes(held))
        try:
            code: int | str = self.server.wait(GRACE)
        except subprocess.TimeoutExpired:
            code = "none: it closed its output"
        threads[0].join(GRACE / 2)
        self.end(f"the program ended (exit code {code})")


def write(stream: int, content: bytes) -> None:
    """Write all of it."""
    left = memoryview(content)
    while left:
        left = left[os.write(stream, left) :]


def mended(content: bytes) -> bytes:
    """JSON with a replacement character for every half of a surrogate pair, for which all of it would be refused."""
    return ESCAPES.sub(lambda match: rb"\ufffd" if match[1] else match[0], content) if b"\\u" in content else content


def descendants() -> list[int]:
    """The running processes that this one, or one of them, started; none where the system does not tell."""
    parents: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{int(name)}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    parents[int(name)] = int(parent)
    processes, size = {os.getpid()}, 0
    while len(processes) > size:
        size = len(processes)
        processes |= {number for number, parent in parents.items() if parent in processes}
    return sorted(processes - {os.getpid()})


def adopt() -> None:
    """Become the parent of every descendant that loses its own, where the system has that (Linux)."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def main(limit: str, *command: str) -> None:
    """Run a command under the guard; a program that cannot be started is said on standard error."""
    adopt()
    if hasattr(os, "setpgrp") and os.getpgrp() != os.getpid():
        os.setpgrp()  # the group that is ended must be no one else's
    try:
        guard = Guard(int(limit), list(command))
    except OSError as error:
        sys.exit(f"the program cannot be started: {error}")
    signal.signal(signal.SIGTERM, lambda *_: guard.end("ended from outside"))
    try:
        guard.run()
    except OSError:
        guard.end("the host no longer reads")


if __name__ == "__main__":
    main(*sys.argv[1:])
