"""The faults that public inference servers had, one check each, numbered as in the project's list.

    python security_test.py PROGRAM [STALLED_CONNECTIONS]
"""

import base64
import concurrent.futures
import http.server
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from server import KEY, OTHER_KEY, Server, make_model, read_all, run_checks, status_of, wait_for

MB = 1 << 20


def refused(reply, param: str | None, status: int = 400) -> None:
    assert reply.status == status, f"{reply.status}, not {status}: {reply.body[:300]!r}"
    if param is not None:
        assert reply.error["param"] == param, f"the error names {reply.error['param']}, not {param}: {reply.error}"
    assert reply.error["message"] and reply.error["type"], reply.error


def post_head(path: str = "/v1/completions", *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                        *headers, "", ""]).encode()


def check_01_counts(s: Server) -> None:
    before = s.rss()
    refused(s.complete(n=2**31), "n")
    refused(s.complete(n=17), "n")
    refused(s.complete(n=0), "n")
    refused(s.complete(best_of=10**9), "best_of")
    refused(s.complete(best_of=2), "best_of")
    refused(s.complete(["x"] * 1000), "prompt")
    refused(s.complete(["x"] * 64, n=16), "n")
    refused(s.chat("hi", n=2**31), "n")
    assert s.rss() - before < 64 * MB, f"memory grew by {s.rss() - before}"


def check_02_ids(s: Server) -> None:
    for bias in ({"512": 1}, {"-1": 1}, {"x": 1}, {"1.5": 1}, {"": 1}, {"99999999999999": 1}, {"1": "x"},
                 {"1": 101}, {str(i): 0 for i in range(1025)}, [1]):
        reply = s.complete(logit_bias=bias)
        refused(reply, None)
        assert reply.error["param"].startswith("logit_bias"), reply.error
    for name in ("stop_token_ids", "allowed_token_ids"):
        for ids in ([512], [-1], [2**40], ["1"], [1.5], [1] * 1025, {"1": 1}):
            reply = s.complete(**{name: ids})
            refused(reply, None)
            assert reply.error["param"].startswith(name), reply.error
    assert s.complete(logit_bias={"3": 100}, temperature=0, max_tokens=2).status == 200


def check_03_prompts(s: Server) -> None:
    begun = [s.complete(p, temperature=0, max_tokens=4) for p in ("", [""], [[]])]
    for reply in begun:
        assert reply.status == 200 and reply.json["usage"]["prompt_tokens"] == 1, reply.body
        assert reply.json["choices"][0]["text"] == begun[0].json["choices"][0]["text"]
    refused(s.complete([]), "prompt")
    refused(s.complete([512]), "prompt[0]")
    refused(s.complete([[1, 2], [2**31]]), "prompt[1][0]")
    refused(s.complete([1, -1]), "prompt[1]")
    refused(s.complete(["x", 1]), "prompt[1]")
    refused(s.complete([None]), None)
    refused(s.complete(None), "prompt")
    refused(s.complete({"text": "x"}), "prompt")
    refused(s.post("/v1/completions", {}), "prompt")


def check_04_echo(s: Server) -> None:
    for echo in (False, True):
        for max_tokens in (0, 3):
            for logprobs in (None, 0, 2):
                for n in (1, 2):
                    for stream in (False, True):
                        echo_case(s, echo, max_tokens, logprobs, n, stream)


def echo_case(s: Server, echo, max_tokens, logprobs, n, stream) -> None:
    case = f"echo={echo} max_tokens={max_tokens} logprobs={logprobs} n={n} stream={stream}"
    prompt = "the quiet rooms"
    fields = dict(echo=echo, max_tokens=max_tokens, n=n, temperature=0, ignore_eos=True)
    if logprobs is not None:
        fields["logprobs"] = logprobs
    reply = s.complete(prompt, stream=stream, **fields)
    assert reply.status == 200, f"{case}: {reply.body}"
    texts, tokens, log_probs, reasons = [""] * n, [[] for _ in range(n)], [[] for _ in range(n)], [None] * n
    for choice in [c for e in reply.events() if e != "[DONE]" for c in e["choices"]] if stream else reply.json["choices"]:
        i = choice["index"]
        texts[i] += choice["text"]
        reasons[i] = choice["finish_reason"] or reasons[i]
        if choice["logprobs"]:
            tokens[i] += choice["logprobs"]["tokens"]
            log_probs[i] += choice["logprobs"]["token_logprobs"]
    ids = s.post("/tokenize", {"prompt": prompt}).json["count"]
    for i in range(n):
        assert reasons[i] == "length", f"{case}: {reasons}"
        assert texts[i].startswith(prompt) == echo, f"{case}: {texts[i]!r}"
        if logprobs is not None:
            assert len(tokens[i]) == len(log_probs[i]) == (ids if echo else 0) + max_tokens, f"{case}: {tokens[i]}"
            assert "".join(tokens[i]) == texts[i], f"{case}: {tokens[i]} {texts[i]!r}"
            assert all(p is not None and p <= 0 for p in log_probs[i]), f"{case}: {log_probs[i]}"
        else:
            assert not tokens[i]
        if max_tokens == 0:
            assert texts[i] == (prompt if echo else ""), f"{case}: {texts[i]!r}"
    assert len({(t, str(p)) for t, p in zip(texts, log_probs)}) == 1, f"{case}: greedy choices differ"
    if not stream:
        assert reply.json["usage"]["completion_tokens"] == n * max_tokens, case


def check_05_numbers(s: Server) -> None:
    for value in ("1000000000000", "-1", "9223372036854775808", "99999999999999999999999", "1.5", '"5"', "true",
                  "[5]", "1e3"):
        refused(s.post("/v1/completions", f'{{"prompt": "x", "max_tokens": {value}}}'), "max_tokens")
    for name, values in {"temperature": ("-1", "NaN", "1e999", "Infinity", '"1"', "101"),
                         "top_p": ("2", "0", "-0.1", "null1"), "min_p": ("-0.1", "1.1"), "top_k": ("-2", "1.5"),
                         "repetition_penalty": ("0", "-1"), "presence_penalty": ("3",), "seed": ("1.5", '"x"'),
                         "frequency_penalty": ("-2.1",), "min_tokens": ("-1", "17", "1.5"), "n": ("1.5", '"2"'),
                         "stream": ("1", '"true"'), "ignore_eos": ("0",), "echo": ('"yes"',),
                         "stop": ("1", "[1]", '""', '[""]', json.dumps(["x"] * 17), json.dumps("x" * 1025))}.items():
        for value in values:
            reply = s.post("/v1/completions", f'{{"prompt": "x", "{name}": {value}}}')
            refused(reply, None)
            assert (reply.error["param"] or "").startswith(name), f"{name} {value}: {reply.error}"
    nulls = {name: None for name in ("max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "logprobs",
                                     "logit_bias", "stream", "stream_options", "echo", "suffix", "best_of")}
    reply = s.complete(**nulls)
    assert reply.status == 200 and reply.json["usage"]["completion_tokens"] <= 16, reply.body
    reply = s.complete(max_tokenz=3)
    refused(reply, "max_tokenz")
    assert "max_tokens" in reply.error["message"]


def check_06_headers(s: Server) -> None:
    assert status_of(s.raw(b"GET /health HTTP/1.1\r\nx-a: " + b"a" * MB + b"\r\n\r\n")) == 431
    assert status_of(s.raw(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 200_000 + b"\r\n")) == 431
    assert status_of(s.raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")) == 414
    assert status_of(s.raw(b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n")) == 414
    assert status_of(s.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64)) == 400
    assert status_of(s.raw(b"GET /health HTTP/9.9\r\n\r\n")) == 400


def check_07_keys(s: Server) -> None:
    good = s.env["LAPLACE_API_KEY"].split(",")
    for key in good:
        assert s.get("/v1/models", key=key).status == 200
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    assert s.get("/v1/models", headers={"Authorization": f"Basic {basic}"}).status == 200
    for key in (KEY[:-1], KEY + "x", KEY.upper(), "x", KEY[::-1], "\xff", ",".join(good), KEY + " "):
        reply = s.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}".encode("latin1")})
        refused(reply, None, 401) if key.strip() != KEY else None
        assert KEY not in reply.body.decode(), "the answer shows a key"
    for value in ("", "Bearer", f"bearer{KEY}", KEY, f"Token {KEY}", "Basic !!!", "Basic " + "A" * 9000):
        refused(s.request("GET", "/v1/models", headers={"Authorization": value}), None, 401)
    # A key is no reason to read the body of somebody without one.
    head = post_head("/v1/completions", f"Content-Length: {7 * MB}")
    assert status_of(s.raw(head, timeout=10)) == 401
    assert KEY not in s.log()


def check_08_cache_scopes(s: Server) -> None:
    prompt = "time runs on through the quiet rooms of the state " * 20

    def cached(**fields) -> int:
        reply = s.complete(prompt, max_tokens=1, **fields)
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(key=KEY) == 0
    wait_for(lambda: cached(key=KEY) > 100, what="a hit of the same key")
    assert cached(key=OTHER_KEY) == 0, "another key's prompt was found"
    assert cached(key=KEY, cache_salt="pepper") == 0, "another salt's prompt was found"
    wait_for(lambda: cached(key=KEY, cache_salt="pepper") > 100, what="a hit of the same salt")
    # Sessions, too, are their key's alone.
    assert s.chat("hi", session="mine", max_tokens=1, key=KEY).status == 200
    refused(s.get("/v1/sessions/mine", key=OTHER_KEY), "session", 404)
    refused(s.request("DELETE", "/v1/sessions/mine", key=OTHER_KEY), "session", 404)
    assert s.get("/v1/sessions", key=OTHER_KEY).json["data"] == []
    assert s.request("DELETE", "/v1/sessions/mine", key=KEY).status == 200


def check_09_templates(s: Server) -> None:
    refused(s.chat("hi", chat_template="{{ messages }}"), "chat_template")
    refused(s.chat("hi", chat_template_kwargs={"x": 1}), "chat_template_kwargs")
    refused(s.complete(chat_template="x"), "chat_template")
    text = "{{ 7*7 }} {% for x in y %}"
    assert s.chat(text, max_tokens=1).status == 200
    refused(s.chat(("wizard", "x")), "messages[0].role")


def session_file(s: Server, name: str):
    return s.program.dir / s.state / "public" / f"{name}.session"


def check_10_states(s: Server) -> None:
    assert s.chat("hi", session="good", max_tokens=3).status == 200
    good = session_file(s, "good").read_bytes()
    length = struct.unpack("<Q", good[8:16])[0]
    header = json.loads(good[16:16 + length])

    def with_header(**changes) -> bytes:
        text = json.dumps(header | changes).encode()
        return good[:8] + struct.pack("<Q", len(text)) + text + good[16 + length:]

    middle = bytearray(good)
    middle[16 + length + 1000] ^= 1
    cases = {"short": good[:-9], "long": good + b"x", "empty": b"", "magic": b"X" + good[1:],
             "flipped": bytes(middle), "header": good[:8] + struct.pack("<Q", 2**63) + good[16:],
             "floats": with_header(slot_floats=2**62), "counts": with_header(counts=2**61),
             "negative": with_header(slot_floats=-1), "other": with_header(model="0" * 16),
             "noname": with_header(name="good"), "extra": with_header(x=1), "random": os.urandom(5000)}
    for name, content in cases.items():
        session_file(s, name).write_bytes(content)
        reply = s.chat("more", session=name, max_tokens=2)
        refused(reply, "session", 409)
        assert reply.error["code"] == "session_refused" and name in reply.error["message"], reply.error
        # With the whole conversation it begins anew, and is a session again.
        reply = s.chat("hi", ("assistant", "there"), "more", session=name, max_tokens=2)
        assert reply.status == 200, f"{name}: {reply.body}"
        assert s.chat("and more", session=name, max_tokens=2).json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    damaged = session_file(s, "good")
    damaged.write_bytes(good[:100])
    assert s.request("DELETE", "/v1/sessions/good").status == 200
    assert s.get("/v1/sessions").status == 200 and s.alive()


def check_11_log_probs(s: Server) -> None:
    for value in (-1, 21, 10**6, 1.5, "2", True):
        refused(s.complete(logprobs=value), "logprobs")
    for value in (-1, 21, 10**6):
        refused(s.chat("x", logprobs=True, top_logprobs=value), "top_logprobs")
    refused(s.chat("x", top_logprobs=2), "top_logprobs")
    refused(s.chat("x", logprobs=2), "logprobs")
    reply = s.complete(logprobs=20, max_tokens=1)
    assert 20 <= len(reply.json["choices"][0]["logprobs"]["top_logprobs"][0]) <= 21


def check_12_routes(s: Server) -> None:
    assert s.request("GET", "/health", headers={"Authorization": "x"}).status == 200
    for path in ("/", "/metrics", "/version", "/v1/models", "/v1/sessions", "/nothing", "//health"):
        refused(s.request("GET", path, headers={"Authorization": "x"}), None, 401)
    for path in ("//v1/models", "/v1//models", "/v1/../metrics", "/v1/%2e%2e/metrics", "/%76ersion", "/v1/models/",
                 "/V1/models", "/v1/models;x", "/v1/sessions/a/b", "/v1/sessions/a/b/fork", "/health/",
                 "/..", "/.git/config", "/v1"):
        refused(s.get(path), None, 404)
    for method, path, allowed in (("POST", "/health", "GET, HEAD"), ("GET", "/v1/completions", "POST"),
                                  ("PUT", "/v1/models", "GET, HEAD"), ("OPTIONS", "/v1/completions", "POST"),
                                  ("TRACE", "/", "GET, HEAD"),
                                  ("PATCH", "/v1/sessions/a", "GET, HEAD, DELETE"),
                                  ("FOO", "/metrics", "GET, HEAD")):
        reply = s.request(method, path)
        refused(reply, None, 405)
        assert reply.headers["allow"] == allowed
    assert s.get("/v1/models?x=/../y").status == 200
    refused(s.get("http://localhost/metrics", headers={"Authorization": "x"}), None, 401)
    refused(s.post("/v1/completions", "prompt=x", headers={"Content-Type": "application/x-www-form-urlencoded"}),
            None, 415)
    refused(s.post("/v1/completions", "{}", headers={"Content-Type": "text/plain"}), None, 415)
    reply = s.complete(max_tokens=1)
    assert "access-control-allow-origin" not in reply.headers


def check_13_overflow(s: Server) -> None:
    """Sizes and offsets that overflow, in the files that the server opens itself."""
    run = s.program.dir / "run"
    model = next(p for p in (run / "checkpoints").iterdir() if p.is_dir())
    weights = (model / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8:8 + length])

    def variant(name: str, tensors: bytes | None = None, tokenizer: str | None = None) -> str:
        target = s.program.dir / name
        target.mkdir()
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copy(model / file, target / file)
        if tensors is not None:
            (target / "model.safetensors").write_bytes(tensors)
        if tokenizer is not None:
            (target / "tokenizer.json").write_text(tokenizer)
        return name

    def with_header(edit) -> bytes:
        changed = json.loads(json.dumps(header))
        edit(changed)
        text = json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + weights[8 + length:]

    def offsets(a, b):
        return lambda h: h["norm.weight"].update(data_offsets=[a, b])

    cases = [variant("st-length", struct.pack("<Q", 2**64 - 1) + weights[8:]),
             variant("st-end", with_header(offsets(0, 2**64 - 1))),
             variant("st-sum", with_header(offsets(2**63, 2**63 + 256))),
             variant("st-shape", with_header(lambda h: h["norm.weight"].update(shape=[2**32, 2**32, 2**32]))),
             variant("st-cut", weights[:-1])]
    for name in cases:
        s.program.refuse("serve", "--model", name, "--port", 0, "--state-dir", "s13", says="model.safetensors")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["a"] = 2**40
    name = variant("tok-id", tokenizer=json.dumps(tokenizer))
    s.program.refuse("serve", "--model", name, "--port", 0, "--state-dir", "s13", says="tokenizer.json")


def check_14_long_runs(program) -> None:
    with Server(program, "--max-body-bytes", 64 * MB) as s:
        for text in ("a" * 10 * MB, " " * 10 * MB, "7" * 10 * MB, "\u6f22" * (10 * MB // 3), "\n" * 10 * MB,
                     "a " * 5 * MB, "'" * 10 * MB):
            reply = s.post("/tokenize", {"prompt": text}, timeout=600)
            assert reply.status == 200 and reply.json["count"] > 0, reply.body[:200]
            assert s.get("/health").status == 200


def check_15_json(s: Server) -> None:
    bodies = [b"", b"{", b"}", b"[]", b"null", b"1", b'"x"', b'{"prompt": "x"', b'{"prompt": "x"} x', b'{"prompt": "x"}{}',
              b'{"prompt": "x",}', b"{'prompt': 'x'}", b'{"prompt": "\xff"}', b'{"prompt": "\xc0\x80"}',
              b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00"}',
              b'{"prompt": "\\ud800\\u0041"}', b'{"\\ud800": 1, "prompt": "x"}', b'{"prompt": "x", "prompt": "y"}',
              b'{"prompt": "x", "logit_bias": {"1": 1, "1": 2}}', b'{"prompt": "x", "temperature": NaN}',
              b'{"prompt": "x", "temperature": -Infinity}', b'{"prompt": "x", "n": 01}', b'{"prompt": "x", "n": +1}',
              b'{"prompt": "x", "n": 1e400}', b'{"prompt": "x" /* c */}', b"\xef\xbb\xbf\x00{}", b'{"prompt": "a\nb"}',
              b'{"prompt": "x\x00"}', b"\x00" * 100, b"[" * 2_000_000, b'{"a":' * 1_000_000,
              b'{"prompt": ' + b"[" * 65 + b"]" * 65 + b"}", b'{"prompt": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"]
    for body in bodies:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            refused(s.post(path, body), None)
    refused(s.post("/v1/completions", b'{"prompt": "' + b"x" * 8 * MB + b'"}'), None, 413)
    assert s.complete("\u0000 \ud83d\ude00 ok", max_tokens=1).status == 200


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
        twice = post_head("/v1/completions", "Content-Length: 3", "Content-Length: 4")
        assert status_of(s.raw(twice + body)) == 400
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


def check_17_request_ids(s: Server) -> None:
    assert s.get("/health", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    for value in (b"a\r\n b", b"a\r\n\tset-cookie: x=1", b"a\x01b", b"a\x7fb", "\u00e9".encode(), b"x" * 5000):
        raw = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-request-id: " + value + b"\r\n\r\n")
        assert status_of(raw) in (200, 400), raw
        head = raw.split(b"\r\n\r\n")[0]
        ids = [line for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id:")]
        assert len(ids) == 1 and len(ids[0]) < 160 and b"set-cookie" not in head.replace(ids[0], b""), head
        assert all(32 <= c < 127 for c in ids[0]), ids
    ids = {s.get("/health").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20
    assert all(len(line["request_id"]) <= 128 for line in s.access())


def check_18_addresses(s: Server) -> None:
    visits = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            visits.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *unused):
            pass

    web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_port}/x.png"
    image = [{"type": "image_url", "image_url": {"url": url}}]
    refused(s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": image}]}), "messages[0].content[0]")
    refused(s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}), None)
    assert s.chat(f"look at {url} and file:///etc/passwd", max_tokens=2).status == 200
    assert s.complete(f"![x]({url})", max_tokens=2).status == 200
    web.shutdown()
    assert visits == []


def check_19_session_names(program) -> None:
    with Server(program, "--max-sessions", 4, state="state19") as s:
        for name in ("../x", ".", "..", "", "a/b", "a\\b", "x" * 65, "é", "a\u0000b", "a b", "a.b", "\u2025", "a%2fb"):
            refused(s.chat("x", session=name), "session")
        for name in ("..", ".", "a.b", "x" * 65, "%2e%2e", "a%00"):
            assert s.get(f"/v1/sessions/{name}").status == 400, name
            assert s.request("DELETE", f"/v1/sessions/{name}").status == 400, name
        assert s.chat("x", session="a" * 64, max_tokens=1).status == 200
        refused(s.post("/v1/sessions/" + "a" * 64 + "/fork", {"name": "../b"}), "name")
        # A link is not followed, wherever it leads, and nothing is written through it.
        outside = program.dir / "outside.session"
        outside.write_bytes(session_file(s, "a" * 64).read_bytes())
        before = outside.read_bytes()
        session_file(s, "link").symlink_to(outside)
        assert s.chat("x", session="link", max_tokens=1).status >= 400
        assert outside.read_bytes() == before
        session_file(s, "link").unlink()
        (program.dir / "state19" / "public.tmp").mkdir()
        fifo = session_file(s, "fifo")
        os.mkfifo(fifo)
        assert s.chat("x", session="fifo", max_tokens=1).status >= 400
        fifo.unlink()
        for name in ("b", "c", "d"):
            assert s.chat("x", session=name, max_tokens=1).status == 200
        refused(s.chat("x", session="e", max_tokens=1), "session", 507)
        assert s.chat("x", session="b", max_tokens=1).status == 200, "a session that is there goes on"
        assert s.request("DELETE", "/v1/sessions/d").status == 200
        assert s.chat("x", session="e", max_tokens=1).status == 200
        files = {str(p.relative_to(program.dir / "state19")) for p in (program.dir / "state19").rglob("*.session")}
        assert files == {f"public/{n}.session" for n in ("a" * 64, "b", "c", "e")}, files


def check_20_exposure(program) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        program.refuse("serve", "--model", "run", "--host", host, "--port", 0, "--state-dir", "s20", says="--insecure")
    program.refuse("serve", "--model", "run", "--host", "nonsense", "--port", 0, "--insecure", "--state-dir", "s20",
                   says="nonsense")
    with Server(program, "--host", "0.0.0.0", "--insecure") as s:
        assert s.get("/v1/models").status == 200
    with Server(program, "--host", "0.0.0.0", env={"LAPLACE_API_KEY": KEY}) as s:
        assert s.get("/v1/models").status == 200
    keys = program.dir / "keys"
    keys.write_text(f"# comment\n\n{KEY}\n")
    with Server(program, "--host", "0.0.0.0", "--api-key-file", "keys") as s:
        assert s.get("/v1/models", key=KEY).status == 200
        refused(s.request("GET", "/v1/models"), None, 401)
    keys.write_text("short\n")
    program.refuse("serve", "--model", "run", "--api-key-file", "keys", "--port", 0, says="keys line 1")
    # A page of another site that makes its own name point here.
    with Server(program) as s:
        refused(s.get("/v1/models", headers={"Host": "evil.example"}), None, 421)
        for host in ("localhost", "localhost:1234", "127.0.0.1:80", "[::1]:80"):
            assert s.get("/v1/models", headers={"Host": host}).status == 200


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


def main() -> None:
    stalled = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program, "--prefix-cache", 16 * MB) as s:
            run_checks((check_01_counts, check_02_ids, check_03_prompts, check_04_echo, check_05_numbers,
                        check_06_headers, check_09_templates, check_10_states, check_11_log_probs, check_13_overflow,
                        check_15_json, check_17_request_ids, check_18_addresses), s)
            assert s.alive() and s.stop() == 0, s.log()
        with Server(program, env={"LAPLACE_API_KEY": f"{KEY},{OTHER_KEY}"}, state="keyed") as s:
            run_checks((check_07_keys, check_08_cache_scopes, check_12_routes), s)
            assert s.alive() and s.stop() == 0, s.log()
        run_checks((check_14_long_runs, check_16_framing, check_19_session_names, check_20_exposure, check_21_dropped,
                    check_22_sigterm, check_23_overload, check_24_disconnects, check_25_cross_talk), program)
        run_checks((check_21_stalled,), program, stalled)


if __name__ == "__main__":
    main()
