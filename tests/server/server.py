"""What the server's tests share: a tiny model, a running `laplace serve`, requests by hand.

Tests are scripts: `python x_test.py PROGRAM [...]`. Checks are functions named check_*.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from program import Program  # noqa: E402

KEY = "test-key-0123456789abcdef"
OTHER_KEY = "other-key-0123456789abcdef"
MB = 1 << 20


def make_model(directory: str, program: str, steps: int = 300) -> Program:
    """DIRECTORY/run, a model of 52 thousand parameters that has read a few words."""
    laplace = Program(program, directory)
    laplace.prepare()
    laplace.run(*laplace.train_flags("run", steps=steps))
    return laplace


class Reply:
    def __init__(self, status: int, headers: dict, body: bytes):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json["error"]

    def events(self) -> list:
        """Of a stream: the JSON of every event, and "[DONE]"."""
        data = [e[6:] for e in self.body.decode().split("\n\n") if e.startswith("data: ")]
        return [e if e == "[DONE]" else json.loads(e) for e in data]


class Server:
    """`laplace serve` on a free port, ended when the block ends. `env`: more environment."""

    def __init__(self, program: Program, *flags, env: dict | None = None, state: str = "state",
                 model: str = "run"):
        self.program, self.flags = program, [str(f) for f in flags]
        self.env, self.state, self.model = env or {}, state, model
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def start(self, port: int = 0) -> None:
        self.errors = tempfile.TemporaryFile()
        state = [] if "--state-store" in self.flags else ["--state-dir", self.state]
        # The model is tiny: on a busy machine two threads wait for each other more than they do.
        threads = [] if "--threads" in self.flags else ["--threads", "1"]
        self.process = subprocess.Popen(
            self.program.command("serve", "--model", self.model, "--port", port, *threads, *state, *self.flags),
            cwd=self.program.dir, stdout=subprocess.PIPE, stderr=self.errors, env=os.environ | self.env)
        line = self.process.stdout.readline().decode()
        match = re.fullmatch(r"http://(.+):(\d+)\n", line)
        assert match, f"no address but {line!r}: {self.log()}"
        self.host, self.port = match[1].strip("[]"), int(match[2])
        self.url = line.strip()

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def access(self) -> list[dict]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def stop(self, timeout: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def alive(self) -> bool:
        return self.process.poll() is None

    def rss(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def metric(self, name: str, **labels) -> float:
        total, seen = 0.0, False
        for line in self.get("/metrics").body.decode().splitlines():
            match = re.fullmatch(rf"{re.escape(name)}{{(.*)}} (\S+)", line)
            if match and all(f'{k}="{v}"' in match[1] for k, v in labels.items()):
                total, seen = total + float(match[2]), True
        assert seen, f"there is no metric {name} {labels}"
        return total

    def request(self, method: str, path: str, body=None, headers: dict | None = None,
                key: str | None = None, timeout: float = 120) -> Reply:
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        if key or (key is None and self.env.get("LAPLACE_API_KEY")):
            headers.setdefault("Authorization", f"Bearer {key or self.env['LAPLACE_API_KEY'].split(',')[0]}")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options) -> Reply:
        return self.request("GET", path, **options)

    def post(self, path: str, body, **options) -> Reply:
        return self.request("POST", path, body, **options)

    def complete(self, prompt="the state", key=None, **fields) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt} | fields, key=key)

    def chat(self, *messages, key=None, **fields) -> Reply:
        """Messages are texts of the user, or (role, text)."""
        said = [{"role": "user", "content": m} if isinstance(m, str) else {"role": m[0], "content": m[1]}
                for m in messages]
        return self.post("/v1/chat/completions", {"messages": said} | fields, key=key)

    def connect(self, timeout: float = 30) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def raw(self, data: bytes, timeout: float = 30, end: bool = False) -> bytes:
        """Sends bytes and returns all that comes until the connection ends or nothing comes."""
        with self.connect(timeout) as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            except (ConnectionResetError, BrokenPipeError):
                pass
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return got


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.") else 0


def refused(reply, param: str | None, status: int = 400) -> None:
    assert reply.status == status, f"{reply.status}, not {status}: {reply.body[:300]!r}"
    if param is not None:
        assert reply.error["param"] == param, f"the error names {reply.error['param']}, not {param}: {reply.error}"
    assert reply.error["message"] and reply.error["type"], reply.error


def post_head(path: str = "/v1/completions", *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                        *headers, "", ""]).encode()


def session_file(s: Server, name: str):
    return s.program.dir / s.state / "public" / f"{name}.session"


def wait_for(condition, timeout: float = 30, what: str = "") -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited {timeout} s in vain: {what or condition}"
        time.sleep(0.02)


def run_checks(checks, *arguments) -> None:
    wanted = os.environ.get("ONLY", "")
    for check in checks:
        if wanted and wanted not in check.__name__:
            continue
        begun = time.monotonic()
        check(*arguments)
        print(f"{check.__name__} passed ({time.monotonic() - begun:.1f} s)", flush=True)
