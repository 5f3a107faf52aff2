"""Two servers that share Redis, behind nginx with deploy/nginx.conf; one is killed, one is drained.

    python scale_out_test.py PROGRAM SOURCE_DIRECTORY
"""

import concurrent.futures
import contextlib
import http.client
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from server import Server, make_model, run_checks, wait_for


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def find_redis() -> list[str] | None:
    if path := shutil.which("redis-server"):
        return [path]
    return None


class Process:
    def __init__(self, *command, cwd):
        self.port = command[2]  # of Redis
        self.process = subprocess.Popen(list(map(str, command)), cwd=cwd, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait(20)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def nginx_config(source: pathlib.Path, folder: pathlib.Path, port: int, replicas: list[int]) -> pathlib.Path:
    text = (source / "deploy" / "nginx.conf").read_text()
    for old, new in (("127.0.0.1:8000", port), ("127.0.0.1:8001", replicas[0]), ("127.0.0.1:8002", replicas[1])):
        assert old in text
        text = text.replace(old, f"127.0.0.1:{new}")
    # Where somebody who is not root may write.
    paths = "".join(f"  {kind}_temp_path {folder / kind};\n"
                    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = text.replace("http {\n", "http {\n" + paths)
    if os.getuid() == 0:
        text = "user root;\n" + text
    config = folder / "nginx.conf"
    config.write_text(text)
    return config


class Front(Server):
    """nginx as if it were a server."""

    def __init__(self, port: int):
        self.host, self.port, self.env, self.url = "127.0.0.1", port, {}, f"http://127.0.0.1:{port}"


def content(reply) -> str:
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["message"]["content"]


WORDS = ("the quiet rooms", "time runs on", "a model", "texts grow")


class Talk:
    """A client of one session: replies (None: it was saved, but lost on its way) and errors. It goes on for `turns`
    turns, or as long as `going` holds."""

    def __init__(self, front: Front, name: str, seed: int):
        self.front, self.name, self.seed = front, name, seed
        self.replies, self.errors = [], []

    def words(self, turn: int) -> str:
        return random.Random(self.seed * 1000 + turn).choice(WORDS)

    def run(self, going) -> "Talk":
        while going(len(self.replies)):
            self.turn()
        return self

    def turn(self) -> None:
        turn = len(self.replies)
        try:
            reply = self.front.chat(self.words(turn), session=self.name, seed=turn, temperature=1, max_tokens=60,
                                    ignore_eos=True)
        except (OSError, http.client.HTTPException) as error:
            reply, problem = None, repr(error)
        if reply is not None and reply.status == 200:
            self.replies.append(content(reply))
            time.sleep(0.02)
            return
        if reply is not None:
            assert reply.status in (409, 429, 502, 503, 504), reply.body
            problem = reply.status
        self.errors.append(problem)
        time.sleep(0.2)
        info = self.front.get(f"/v1/sessions/{self.name}")
        saved = info.json["turns"] if info.status == 200 else 0
        assert saved in (turn, turn + 1), f"{self.name}: {saved} saved, {turn} seen"
        if saved > turn:
            self.replies.append(None)


def check_moving(front: Front, servers: list[Server]) -> None:
    """One session, turn by turn on the one and on the other server."""
    alone = [content(servers[0].chat(w, session="alone", seed=1, max_tokens=5)) for w in ("the state", "rooms", "time")]
    moved = [content(servers[i % 2].chat(w, session="moved", seed=1, max_tokens=5))
             for i, w in enumerate(("the state", "rooms", "time"))]
    assert moved == alone
    assert servers[1].metric("laplace:session_loads_total") > 0
    assert servers[0].get("/v1/sessions/moved").json["turns"] == 3
    # In use on one, it waits on the other, and cannot be deleted.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        long = pool.submit(servers[0].complete, "x", session="held", max_tokens=8_000, ignore_eos=True)
        wait_for(lambda: servers[0].metric("laplace:sessions_in_use") == 1)
        assert servers[1].request("DELETE", "/v1/sessions/held").status == 409
        assert servers[1].complete("y", session="held", max_tokens=1).status in (200, 409)
        assert long.result().status == 200
    assert servers[1].post("/v1/sessions/moved/fork", {"name": "copy"}).status == 200
    assert servers[0].get("/v1/sessions/copy").json["turns"] == 3
    assert servers[0].request("DELETE", "/v1/sessions/copy").status == 200
    assert servers[1].get("/v1/sessions/copy").status == 404
    # Streams go through nginx piece by piece.
    events = front.chat("time", stream=True, max_tokens=5, ignore_eos=True).events()
    assert events[-1] == "[DONE]" and len(events) >= 6


def check_kill_and_drain(front: Front, servers: list[Server]) -> None:
    """One replica is killed in the middle of replies and comes back, then the other drains and comes back. A client
    sees one error at most in all of it: that of the request which the killed one was at."""
    clients = 12
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(Talk(front, f"k{c}", c).run, lambda turns: not over.is_set()) for c in range(clients)]
        try:
            held = []
            for disrupt in (servers[0].kill, lambda: servers[1].stop()):
                time.sleep(0.5)
                while not all(in_use := [s.metric("laplace:sessions_in_use") for s in servers]):
                    pass
                held.append(sum(in_use))
                ended = disrupt()
                assert not ended, servers[1].log()
                time.sleep(1.5)
                server = servers[len(held) - 1]
                server.start(server.port)
                wait_for(lambda: server.metric("laplace:session_loads_total") > 0, what="work for the new one")
            time.sleep(0.5)
        finally:
            over.set()
        talks = [future.result() for future in running]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        wholes = list(pool.map(lambda t: Talk(front, "w" + t.name, t.seed).run(lambda turns: turns < len(t.replies)), talks))
    for talk, whole in zip(talks, wholes):
        assert whole.errors == [], whole.errors
        for turn, reply in enumerate(talk.replies):
            assert reply in (None, whole.replies[turn]), f"{talk.name} turn {turn}: {reply!r}, not {whole.replies[turn]!r}"
    total = sum(len(t.errors) for t in talks)
    print(f"  one killed, one drained, with {held[0]:.0f} and {held[1]:.0f} requests under way: {total} errors in "
          f"{sum(len(t.replies) for t in talks)} turns of {clients} clients; every reply right")
    for talk in talks:
        assert len(talk.errors) <= 1, f"{talk.name} saw {talk.errors}"
    assert total > 0, "nothing was under way on the one that was killed"


def tell_redis(port: int, *commands: str) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        answers = s.makefile("rb")
        for command in ("AUTH secret-word", *commands):
            s.sendall(command.encode() + b"\r\n")
            assert answers.readline() == b"+OK\r\n", command


def plain_traffic(front: Front, going) -> list[int]:
    statuses = []
    while going():
        statuses.append(front.chat("x", max_tokens=1).status)
    return statuses


@contextlib.contextmanager
def undisturbed(front: Front):
    """While sessions fail, others do not notice."""
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        running = [pool.submit(plain_traffic, front, lambda: not over.is_set()) for _ in range(3)]
        try:
            yield
        finally:
            over.set()
        for future in running:
            statuses = future.result()
            assert statuses and set(statuses) == {200}, {s: statuses.count(s) for s in set(statuses)}


def check_store_full(front: Front, servers: list[Server], redis_port: int) -> None:
    """What is full can be freed."""
    assert servers[0].chat("x", session="full", max_tokens=1).status == 200
    tell_redis(redis_port, "CONFIG SET maxmemory 1", "CONFIG SET maxmemory-policy noeviction")
    with undisturbed(front):
        for _ in range(5):
            assert front.chat("x", session="more", max_tokens=1).status == 503
    assert servers[1].request("DELETE", "/v1/sessions/full").status == 200
    tell_redis(redis_port, "CONFIG SET maxmemory 0")
    assert servers[0].get("/v1/sessions/full").status == 404


def check_store_gone(front: Front, servers: list[Server], redis: Process, again: list) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # connections to spare
        assert {r.status for r in pool.map(lambda i: servers[0].chat("x", session=f"p{i}", max_tokens=1), range(8))} == {200}
    redis.process.terminate()
    redis.process.wait(20)
    with undisturbed(front):
        for server in servers:
            reply = server.chat("x", session="moved", max_tokens=1)
            assert reply.status == 503 and reply.error["code"] == "store_unavailable", reply.body
        assert front.chat("x", session="moved", max_tokens=1).status == 503
    assert servers[0].get("/health").status == 200
    with Process(*again, cwd=servers[0].program.dir) as redis:  # connections from before are dead
        wait_for(lambda: answers(redis.port))
        for server in servers:
            for _ in range(9):
                assert server.chat("x", session="anew", max_tokens=1).status == 200


def main() -> None:
    source = pathlib.Path(sys.argv[2])
    redis_server, nginx = find_redis(), shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if redis_server is None or nginx is None:
        print("NOT RUN: the scale-out test needs redis-server and nginx", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        program = make_model(directory, sys.argv[1])
        redis_port, port, *replicas = [free_port() for _ in range(4)]
        store = f"redis://:secret-word@127.0.0.1:{redis_port}/1"
        command = [*redis_server, "--port", redis_port, "--save", "", "--requirepass", "secret-word"]
        with Process(*command, cwd=folder) as redis:
            wait_for(lambda: answers(redis_port))
            servers = [Server(program, "--state-store", store, "--drain-time", 20) for _ in replicas]
            config = nginx_config(source, folder, port, replicas)
            with contextlib.ExitStack() as stack:
                for server, replica in zip(servers, replicas):
                    server.start(replica)
                    stack.push(server.__exit__)
                stack.enter_context(Process(nginx, "-p", folder, "-c", config, "-g", "daemon off;", cwd=folder))
                wait_for(lambda: answers(port))
                front = Front(port)
                run_checks((check_moving, check_kill_and_drain), front, servers)
                run_checks((check_store_full,), front, servers, redis_port)
                run_checks((check_store_gone,), front, servers, redis, command)
        program.refuse("serve", "--model", "run", "--state-store", f"redis://127.0.0.1:{redis_port}", "--port", 0,
                       says="cannot reach")
        for wrong in ("redis://word@host", "redis://:secret-word@host:port", "redis://:secret-word@host:1/x"):
            program.refuse("serve", "--model", "run", "--state-store", wrong, "--port", 0, says="must look like redis://")
        program.refuse("serve", "--model", "run", "--state-store", "s3://bucket", "--port", 0, says="s3://bucket")


if __name__ == "__main__":
    main()
