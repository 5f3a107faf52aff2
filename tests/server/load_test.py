"""Many streams at once for a long time, with clients that leave at random: memory stays flat, no slot is lost,
and the server generates as fast as the engine alone.

    python load_test.py PROGRAM [MINUTES [CONFIG]]

Without minutes a few seconds on a tiny model, for ctest; the rate is printed, not asserted. A long run takes a model of
CONFIG (configs/laplace-160m.json) with random weights, and compares with `laplace bench decode` before and after it.
"""

import json
import os
import pathlib
import random
import selectors
import shutil
import socket
import sys
import tempfile
import time

from server import Server, make_model, run_checks, wait_for

STREAMS = 32
LEAVE = 0.1  # of the clients leave in the middle
# AddressSanitizer holds 256 MB of what was freed back, which looks like a leak.
KEEP_LITTLE = {"ASAN_OPTIONS": "quarantine_size_mb=1:" + os.environ.get("ASAN_OPTIONS", "")}


class Client:
    """One connection after another, each for a stream of `tokens`."""

    def __init__(self, server: Server, selector, rng: random.Random, tokens: int):
        self.server, self.selector, self.rng, self.tokens = server, selector, rng, tokens
        self.whole = self.left = self.events = 0
        self.begin()

    def begin(self) -> None:
        body = json.dumps({"prompt": self.rng.choice(("the state", "time", "rooms")), "max_tokens": self.tokens,
                           "stream": True, "ignore_eos": True, "temperature": 1, "seed": self.rng.randrange(1 << 30)}).encode()
        self.leave_after = self.rng.randrange(1, self.tokens) if self.rng.random() < LEAVE else 0
        self.seen, self.rest = 0, b""
        self.socket = socket.create_connection((self.server.host, self.server.port), timeout=60)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        self.selector.register(self.socket, selectors.EVENT_READ, self)

    def end(self) -> None:
        self.selector.unregister(self.socket)
        self.socket.close()

    def on_readable(self) -> None:
        piece = self.socket.recv(1 << 16)
        data = self.rest + piece
        self.rest = data[-32:] if piece else b""
        count = data.count(b"data: {") - self.rest.count(b"data: {")
        self.seen += count
        self.events += count
        if not piece:
            assert b"[DONE]" in data, f"a stream broke off after {self.seen} events"
            assert self.seen >= self.tokens, f"{self.seen} events of a stream of {self.tokens} tokens"
            self.whole += 1
        elif self.leave_after and self.seen >= self.leave_after:
            self.left += 1
        else:
            return
        self.end()
        self.begin()


def bench_rate(program, config: str, dtype: str, tokens: int) -> float:
    done = program.run("bench", "decode", "--config", config, "--batch", STREAMS, "--output", tokens, "--dtype", dtype,
                       "--temperature", 1, "--json")
    return json.loads(done.stdout)["tokens_per_second"]


def random_model(program, config: pathlib.Path) -> None:
    """DIRECTORY/big: the weights after one step of training are as good as any."""
    shutil.copy(config, program.dir / "big.json")
    program.run(*program.train_flags("big", config="big.json", steps=1, seq_length=32, batch=1))


def check_load(program, minutes: float, model: str, config: str, dtype: str, tokens: int) -> None:
    long_run = minutes > 0
    seconds = minutes * 60 if long_run else 5
    rates = [bench_rate(program, config, dtype, 128)]
    with Server(program, "--slots", STREAMS, "--dtype", dtype, "--threads", os.cpu_count() if long_run else 1,
                "--access-log", "off", model=model, env=KEEP_LITTLE) as s, selectors.DefaultSelector() as selector:
        rng = random.Random(7)
        clients = [Client(s, selector, rng, tokens) for _ in range(STREAMS)]
        generated = lambda: s.metric("laplace:engine_generated_tokens_total")  # noqa: E731

        def drive(until: float) -> None:
            while time.monotonic() < until:
                for key, _ in selector.select(0.1):
                    key.data.on_readable()

        begun = time.monotonic()
        drive(begun + max(seconds / 10, 2))  # buffers and caches fill
        start, tokens_before, memory = time.monotonic(), generated(), []
        while time.monotonic() < begun + seconds:
            drive(time.monotonic() + 1)
            memory.append(s.rss())
        rate = (generated() - tokens_before) / (time.monotonic() - start)
        for client in clients:
            client.end()
        wait_for(lambda: all(s.metric(m) == 0 for m in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                                                        "laplace:state_slots_used", "laplace:requests_active")))
        assert s.metric("laplace:engine_errors_total") == 0
        assert s.stop() == 0, s.log()
    if long_run:
        rates.append(bench_rate(program, config, dtype, 128))
    whole, left = sum(c.whole for c in clients), sum(c.left for c in clients)
    fifth = max(len(memory) // 5, 1)
    growth = max(memory[-fifth:]) - max(memory[:fifth])
    share = rate / (sum(rates) / len(rates))
    print(f"  {STREAMS} streams for {seconds:.0f} s: {whole} whole, {left} left by their clients; {rate:.1f} tokens/s, "
          f"{share:.1%} of bench decode ({', '.join(f'{r:.1f}' for r in rates)}); memory {memory[0] / 1e6:.1f} MB, "
          f"grew by {growth / 1e6:.2f} MB")
    assert whole > 0 and left > 0
    assert growth < max(0.01 * memory[0], 4e6), f"memory grew by {growth}"
    if minutes >= 5:
        assert share >= 0.95, f"{share:.1%} of the engine's rate alone"


def main() -> None:
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else 0
    here = pathlib.Path(__file__).resolve().parent
    config = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else here.parent.parent / "configs" / "laplace-160m.json"
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1], steps=30)
        if minutes > 0:
            random_model(program, config.resolve())
            run_checks((check_load,), program, minutes, "big", "big.json", "bfloat16", 256)
        else:
            run_checks((check_load,), program, minutes, "run", "config.json", "float32", 64)


if __name__ == "__main__":
    main()
