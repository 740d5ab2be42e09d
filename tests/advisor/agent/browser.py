"""A headless Chromium driven over its debugging pipe; standard library only."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --remote-debugging-pipe --disable-gpu --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync --disable-default-apps --mute-audio "
    "--no-default-browser-check --disable-features=Translate,OptimizationHints,MediaRouter --metrics-recording-only"
)


def high(descriptor):
    """The same pipe end under a number that the shell does not use."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20)
    os.close(descriptor)
    return moved


class Browser:
    """One browser with one page. What the page logs, throws and requests is collected."""

    def __init__(self, folder):
        commands, self.out = os.pipe()
        self.inn, replies = os.pipe()
        commands, replies = high(commands), high(replies)
        line = f'exec "$0" {FLAGS} "$@" 3<&{commands} 4>&{replies}'
        words = ["bash", "-c", line, CHROMIUM, f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, pass_fds=(commands, replies), start_new_session=True, **quiet)
        os.close(commands)
        os.close(replies)
        self.number, self.buffer, self.session, self.logged, self.requested = 0, b"", None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        about = {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps({"id": self.number, "method": method, "params": params} | about).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            reply = self.receive(deadline)
            if reply.get("id") == self.number:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inn], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self.inn, 2**16) if ready else b""
            assert part, "the browser ended, or does not answer"
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.logged.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.logged.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.logged.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message

    def run(self, expression):
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression, seconds=30):
        deadline = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never: {expression}"
            time.sleep(0.05)

    def press(self, key):
        base = {"key": key, "code": key, "windowsVirtualKeyCode": {"Enter": 13, "Tab": 9}[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **text, **base)
        self.call("Input.dispatchKeyEvent", type="keyUp", **base)

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        os.close(self.inn)


@contextlib.contextmanager
def opened(folder, address):
    """A browser for the page at an address, closed in the end."""
    browser = Browser(folder / "profile")
    browser.size(1000, 900)
    browser.address = address
    try:
        yield browser
    finally:
        browser.close()


def waited(page, act):
    """Do something and wait for the turn of the agent that it causes."""
    turns = "document.querySelectorAll('#log > li.agent').length"
    before = page.run(turns)
    act()
    page.until(f"{turns} > {before}")


def say(page, message):
    """Type a message and send it."""

    def send():
        page.run("document.getElementById('text').focus()")
        page.call("Input.insertText", text=message)
        page.press("Enter")

    waited(page, send)
