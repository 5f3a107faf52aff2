"""Checks of security_test.py: connections: broken, stalled, too many, gone."""

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import threading
import time

from server import KEY, MB, OTHER_KEY, Server, post_head, read_all, refused, status_of, wait_for


def check_16_framing(program) -> None:
    with Server(program, "--body-timeout", 1) as s:
        body = b'{"prompt": "x", "max_tokens": 1}'
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        close = "Connection: close"
        assert status_of(s.raw(post_head("/v1/completions", "Transfer-Encoding: chunked", close) + chunked)) == 200
        assert status_of(s.raw(post_head("/v1/completions", "Transfer-Encoding: chunked") + chunked[:20])) == 408
        assert status_of(s.raw(post_head("/v1/completions", "Content-Length: 100") + b"{")) == 408
        endless = b"%x\r\n%s\r\n" % (MB, b"x" * MB) * 9
        assert status_of(s.raw(post_head("/v1/completions", "Transfer-Encoding: chunked") + endless)) == 413
        assert status_of(s.raw(post_head("/v1/completions", f"Content-Length: {2**62}"))) == 413
        assert status_of(s.raw(post_head("/v1/completions", close))) == 400
        both = post_head("/v1/completions", "Transfer-Encoding: chunked", f"Content-Length: {len(body)}")
        assert status_of(s.raw(both + chunked)) == 400
        for bad in ("Content-Length: -1", "Content-Length: x", "Content-Length: 99999999999999999999",
                    "Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked"):
            assert status_of(s.raw(post_head("/v1/completions", bad) + body)) == 400, bad
        n = len(body)
        for twice in ((f"Content-Length: {n}", f"Content-Length: {n + 1}"), (f"Content-Length: {n}",) * 2,
                      (f"Content-Length: {n}, {n}",)):
            assert status_of(s.raw(post_head("/v1/completions", *twice) + body)) == 400, twice
        for encoding in ("gzip", "br", "deflate"):
            head = post_head("/v1/completions", f"Content-Encoding: {encoding}", f"Content-Length: {len(body)}")
            assert status_of(s.raw(head + body)) == 415
        for size in (b"fffffffffffffffff", b"-1", b"zz", b""):
            raw = s.raw(post_head("/v1/completions", "Transfer-Encoding: chunked") + size + b"\r\n" + body)
            assert status_of(raw) in (400, 413), (size, raw[:100])
        # Requests sent ahead are answered in order.
        one = post_head("/v1/completions", f"Content-Length: {len(body)}") + body
        last = post_head("/v1/completions", f"Content-Length: {len(body)}", close) + body
        assert s.raw(one * 3 + last).count(b"HTTP/1.1 200") == 4
        assert s.get("/health").status == 200


def stall(s: Server, count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Half of the clients stop in the middle of a header, half do not read their answer: more than sockets hold."""
    body = json.dumps({"prompt": "the quiet rooms " * 2500, "echo": True, "n": 16, "max_tokens": 1, "stream": True}).encode()
    answered = lambda: s.metric("vllm:request_prompt_tokens_count")  # noqa: E731
    sending, reading, before = [], [], answered()
    for i in range(count // 2):
        c = s.connect()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local"[:5 + i % 30])
        sending.append(c)
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect((s.host, s.port))
        c.sendall(post_head("/v1/completions", f"Content-Length: {len(body)}") + body)
        reading.append(c)
        if len(reading) % 50 == 0 or len(reading) == count // 2:  # no more at once than the queues take
            wait_for(lambda: answered() >= before + len(reading), 120, "the answers that nobody reads")
    return sending, reading


# A client of its own, so that the load's client does not count: prints the seconds of each GET.
PROBE = """
import http.client, sys, time
for _ in range(int(sys.argv[3])):
    begun = time.perf_counter()
    c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
    c.request("GET", "/health")
    assert c.getresponse().read() is not None
    c.close()
    print(time.perf_counter() - begun, flush=True)
    time.sleep(0.005)
"""


def check_21_stalled(program, count: int) -> None:
    """Stalled clients cost the others nothing: neither /health nor the rate of their requests."""
    long_run = count >= 1000
    rounds, requests = 3, 400 if long_run else 60
    with Server(program, "--header-timeout", 900, "--write-timeout", 900, "--slots", 8) as s:
        def rate() -> float:
            begun = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                replies = list(pool.map(lambda _: s.complete(max_tokens=32, ignore_eos=True), range(requests)))
            assert all(r.status == 200 for r in replies)
            return requests / (time.monotonic() - begun)

        rate()
        free, crowded, times = [], [], []
        for _ in range(rounds):
            free.append(rate())
            sending, reading = stall(s, count)
            # A request is over a moment after its answer.
            stalled = lambda: s.metric("laplace:requests_active") == len(reading)  # noqa: E731
            wait_for(stalled, what="all readers to stall")
            crowded.append(rate())
            probe = subprocess.Popen([sys.executable, "-c", PROBE, s.host, str(s.port), "500" if long_run else "100"],
                                     stdout=subprocess.PIPE)
            while probe.poll() is None:
                rate()
            times += map(float, probe.stdout.read().split())
            wait_for(stalled, what="the readers, who should have stayed")
            for c in sending + reading:
                c.close()
            wait_for(lambda: s.metric("laplace:requests_active") == 0)
        times.sort()
        p50, p99 = times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3
        share = max(crowded) / max(free)
        print(f"  {count} stalled: /health under load p50 {p50:.1f} ms, p99 {p99:.1f} ms; requests/s "
              f"{max(crowded):.0f} beside {max(free):.0f} without them ({share:.0%})")
        assert p99 < (50 if long_run else 1000), f"/health p99 {p99} ms"
        assert share >= (0.9 if long_run else 0.2), f"{share:.0%} of the rate"


def check_21_dropped(program) -> None:
    """Those that stall in the middle of a header, and those that do not read an endless stream, lose their connection."""
    with Server(program, "--header-timeout", 3, "--write-timeout", 3, "--max-output-bytes", 65536, "--slots", 8) as s:
        body = json.dumps({"prompt": "x", "max_tokens": 200_000, "stream": True, "ignore_eos": True}).encode()
        sending, reading = [], []
        for i in range(30):
            c = s.connect(60)
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local"[:5 + i])
            sending.append(c)
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect((s.host, s.port))
            c.sendall(post_head("/v1/completions", f"Content-Length: {len(body)}") + body)
            reading.append(c)
        for c in sending:
            assert status_of(read_all(c)) in (0, 408)
        wait_for(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0, 300,
                 "requests of clients that do not read to end")
        for c in sending + reading:
            c.close()
        assert s.metric("laplace:disconnects_total") >= 30


def check_22_sigterm(program) -> None:
    def stream(s: Server, tokens: int, results: list, **fields) -> None:
        results.append(s.complete(max_tokens=tokens, stream=True, ignore_eos=True, **fields))

    # Long enough to end: everything ends as usual, and nothing new begins.
    with Server(program, "--drain-time", 60) as s:
        idle = s.connect()
        results = []
        threads = [threading.Thread(target=stream, args=(s, 4000, results)) for _ in range(3)]
        [t.start() for t in threads]
        wait_for(lambda: s.metric("vllm:num_requests_running") == 3)
        s.process.terminate()
        wait_for(lambda: s.get("/health").status == 503)
        refused(s.complete(), None, 503)
        idle.close()
        [t.join() for t in threads]
        assert s.process.wait(60) == 0, s.log()
        for reply in results:
            events = reply.events()
            assert events[-1] == "[DONE]" and events[-2]["choices"][0]["finish_reason"] == "length"
    # Too short: an error, the end of the stream, and the session as it was.
    with Server(program, "--drain-time", 0.5, state="state22") as s:
        assert s.complete("x", session="kept", max_tokens=4, ignore_eos=True).status == 200
        before = s.get("/v1/sessions/kept").json
        results = []
        threads = [threading.Thread(target=stream, args=(s, 900_000, results)),
                   threading.Thread(target=stream, args=(s, 900_000, results), kwargs={"session": "kept"})]
        whole = []
        threads.append(threading.Thread(target=lambda: whole.append(s.complete(max_tokens=900_000, ignore_eos=True))))
        [t.start() for t in threads]
        wait_for(lambda: s.metric("vllm:num_requests_running") == 3)
        assert s.stop() == 0, s.log()
        [t.join() for t in threads]
        for reply in results:
            events = reply.events()
            assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "stopping", events[-2:]
        refused(whole[0], None, 503)
    with Server(program, state="state22") as s:
        assert s.get("/v1/sessions/kept").json == before
    with Server(program) as s:
        os.kill(s.process.pid, 2)  # SIGINT is the same
        assert s.process.wait(60) == 0


def check_23_overload(program) -> None:
    with Server(program, "--slots", 1, "--max-waiting", 3) as s:
        before = s.rss()
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(lambda _: s.complete(max_tokens=600, ignore_eos=True), range(40)))
        statuses = [r.status for r in replies]
        assert set(statuses) == {200, 429}, statuses
        for reply in replies:
            if reply.status == 429:
                refused(reply, None, 429)
                assert int(reply.headers["retry-after"]) >= 1
        assert s.rss() - before < 64 * MB
        assert s.complete(max_tokens=1).status == 200
        assert s.metric("laplace:rejected_total") == statuses.count(429)
    with Server(program, "--max-concurrent-per-key", 2, env={"LAPLACE_API_KEY": f"{KEY},{OTHER_KEY}"}) as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            busy = [pool.submit(s.complete, max_tokens=3000, ignore_eos=True, key=KEY) for _ in range(8)]
            wait_for(lambda: s.metric("vllm:num_requests_running") == 2)
            assert s.complete(max_tokens=1, key=OTHER_KEY).status == 200, "one key's load is another's"
            assert {f.result().status for f in busy} == {200, 429}
    with Server(program, "--max-connections", 10) as s:
        held = [s.connect() for _ in range(10)]
        wait_for(lambda: status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 503)
        [c.close() for c in held]
        wait_for(lambda: status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 200)


def check_24_disconnects(program) -> None:
    with Server(program, "--slots", 2, "--prefill-budget", 4, "--prefix-cache", 0) as s:
        def begin(body: dict) -> socket.socket:
            data = json.dumps(body).encode()
            c = s.connect()
            c.sendall(post_head("/v1/completions", f"Content-Length: {len(data)}") + data)
            return c

        def idle() -> bool:
            return all(s.metric(m) == 0 for m in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                                                  "laplace:state_slots_used", "laplace:requests_active"))

        prefill = {"prompt": [5] * 1_000_000, "max_tokens": 1}
        decode = {"prompt": "x", "max_tokens": 900_000, "ignore_eos": True}
        for body in (prefill, decode, decode | {"stream": True}):
            c = begin(body)
            wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
            c.close()
            wait_for(idle, what=f"a free slot after {str(body)[:60]}")
        running = [begin(decode) for _ in range(2)]
        wait_for(lambda: s.metric("vllm:num_requests_running") == 2)
        queued = begin(decode)
        wait_for(lambda: s.metric("laplace:requests_active") == 3)
        queued.close()
        wait_for(lambda: s.metric("laplace:requests_active") == 2, what="a queued request to leave")
        [c.close() for c in running]
        wait_for(idle)
        assert s.metric("vllm:prompt_tokens_total") >= 0 and s.complete(max_tokens=1).status == 200


def check_25_cross_talk(program) -> None:
    with Server(program, "--slots", 3, "--poison") as s:
        def ask(i: int):
            reply = s.complete(f"the {'quiet ' * (i % 7)}rooms {i % 50}", max_tokens=1 + i % 9, seed=i % 50, logprobs=2,
                               temperature=0 if i % 3 else 1, ignore_eos=True)
            assert reply.status == 200, reply.body
            choice = reply.json["choices"][0]
            return json.dumps([choice["text"], choice["logprobs"]])

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            crowd = list(pool.map(ask, range(1000)))
        for i in range(0, 1000, 7):
            assert crowd[i] == ask(i), f"request {i} differs from its solo run"
