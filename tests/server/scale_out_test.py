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
import time

from server import Server, make_model, run_checks, wait_for

TURNS = 6


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


def converse(front: Front, name: str, words: list[str]) -> tuple[list, int]:
    """The replies (None: it was saved, but lost on its way), and how many errors there were."""
    replies, errors = [], 0
    while len(replies) < TURNS:
        turn = len(replies)
        try:
            reply = front.chat(words[turn], session=name, seed=turn, temperature=1, max_tokens=150,
                               ignore_eos=True)
        except (OSError, http.client.HTTPException):
            reply = None
        if reply is not None and reply.status == 200:
            replies.append(content(reply))
            time.sleep(0.05)
            continue
        assert reply is None or reply.status in (409, 429, 502, 503, 504), reply.body
        errors += 1
        time.sleep(0.2)
        info = front.get(f"/v1/sessions/{name}")
        saved = info.json["turns"] if info.status == 200 else 0
        assert saved in (turn, turn + 1), f"{name}: {saved} saved, {turn} seen"
        if saved > turn:
            replies.append(None)
    return replies, errors


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
    rng = random.Random(2)
    words = {f"k{c}": [rng.choice(("the quiet rooms", "time runs on", "a model", "texts grow")) for _ in range(TURNS)]
             for c in range(12)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        whole = {n: r for n, (r, _) in zip(words, pool.map(lambda n: converse(front, "w" + n, words[n]), words))}
    disruptions = 0
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        running = {name: pool.submit(converse, front, name, words[name]) for name in words}
        time.sleep(0.3)
        servers[0].kill()
        disruptions += 1
        time.sleep(1.5)
        servers[0].start(servers[0].port)
        time.sleep(0.5)
        assert servers[1].stop() == 0, servers[1].log()
        disruptions += 1
        servers[1].start(servers[1].port)
        results = {name: future.result() for name, future in running.items()}
    worst = max(errors for _, errors in results.values())
    for name, (replies, errors) in results.items():
        for turn, reply in enumerate(replies):
            assert reply in (None, whole[name][turn]), f"{name} turn {turn}: {reply!r}, not {whole[name][turn]!r}"
        assert errors <= disruptions, f"{name} saw {errors} errors"
    total = sum(errors for _, errors in results.values())
    print(f"  one killed, one drained: {total} errors in all, {worst} at most for one client; every reply right")


def check_store_gone(front: Front, servers: list[Server], redis: Process) -> None:
    redis.process.terminate()
    redis.process.wait(20)
    reply = servers[0].chat("x", session="moved", max_tokens=1)
    assert reply.status == 503 and reply.error["code"] == "store_unavailable", reply.body
    assert servers[0].chat("x", max_tokens=1).status == 200, "without a session all goes on"
    assert servers[0].get("/health").status == 200


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
        with Process(*redis_server, "--port", redis_port, "--save", "", "--requirepass", "secret-word", cwd=folder) as redis:
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
                run_checks((check_store_gone,), front, servers, redis)
        program.refuse("serve", "--model", "run", "--state-store", f"redis://127.0.0.1:{redis_port}", "--port", 0,
                       says="cannot reach")
        program.refuse("serve", "--model", "run", "--state-store", "s3://bucket", "--port", 0, says="s3://bucket")


if __name__ == "__main__":
    main()
