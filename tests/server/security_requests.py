"""Checks of security_test.py: what a request holds."""

import http.server
import json
import shutil
import struct
import threading

from server import MB, Server, refused, status_of


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


def check_09_templates(s: Server) -> None:
    refused(s.chat("hi", chat_template="{{ messages }}"), "chat_template")
    refused(s.chat("hi", chat_template_kwargs={"x": 1}), "chat_template_kwargs")
    refused(s.complete(chat_template="x"), "chat_template")
    text = "{{ 7*7 }} {% for x in y %}"
    assert s.chat(text, max_tokens=1).status == 200
    refused(s.chat(("wizard", "x")), "messages[0].role")


def check_11_log_probs(s: Server) -> None:
    for value in (-1, 21, 10**6, 1.5, "2", True):
        refused(s.complete(logprobs=value), "logprobs")
    for value in (-1, 21, 10**6):
        refused(s.chat("x", logprobs=True, top_logprobs=value), "top_logprobs")
    refused(s.chat("x", top_logprobs=2), "top_logprobs")
    refused(s.chat("x", logprobs=2), "logprobs")
    reply = s.complete(logprobs=20, max_tokens=1)
    assert 20 <= len(reply.json["choices"][0]["logprobs"]["top_logprobs"][0]) <= 21


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
