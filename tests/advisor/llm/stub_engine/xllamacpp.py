"""Stands in for the engine: the model file's text says how it behaves."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace


class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = {"model": asked["model"], "choices": [{"message": {"content": "hello"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *_):
        pass


class Server:
    def __init__(self, params):
        behaviour = Path(params.model.path).read_text()
        if behaviour == "slow":
            time.sleep(600)
        if behaviour == "broken":
            sys.stderr.write("0.00.01 E read: the file is cut\n")
            raise RuntimeError("Failed to init server")
        assert params.hostnames == ["127.0.0.1"]
        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
