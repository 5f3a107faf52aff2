"""What the clients of other servers send: each case broke a server that speaks OpenAI's API somewhere.

    python clients_test.py PROGRAM
"""

import concurrent.futures
import email.utils
import http.client
import json
import sys
import tempfile
import time

import openai
from server import Server, make_model, read_all, refused, run_checks, status_of, wait_for

HI = [{"role": "user", "content": "time runs on"}]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def chat(s: Server, **fields):
    return s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 3} | fields)


def check_taken(s: Server) -> None:
    """Fields that ask for nothing unusual, in the forms in which clients send them."""
    for fields in (
        {"frequency_penalty": 0.0, "logit_bias": {}, "n": 1, "presence_penalty": 0.0, "stop": None, "stream": False,
         "temperature": 0.2, "top_p": 1.0, "user": ""},
        {"seed": None, "temperature": None, "top_logprobs": None, "logprobs": None, "response_format": None},
        {"tools": None, "tool_choice": None}, {"tools": None, "tool_choice": "auto"},
        {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "parallel_tool_calls": True},
        {"tools": [TOOL], "tool_choice": "none"}, {"functions": [TOOL["function"]], "function_call": "none"},
        {"logprobs": False, "top_logprobs": 0}, {"stop": []}, {"metadata": {}, "store": False},
        {"response_format": {"type": "text"}, "modalities": ["text"], "web_search_options": None},
        {"stream_options": None}, {"best_of": None, "echo": False, "add_generation_prompt": True,
                                   "continue_final_message": False, "include_stop_str_in_output": False,
                                   "skip_special_tokens": True, "bad_words": [], "prompt_logprobs": None},
        {"max_tokens": 3, "max_completion_tokens": 2}, {"top_k": -1, "min_p": 0, "repetition_penalty": 1},
        {"use_beam_search": False, "length_penalty": 1, "early_stopping": False, "guided_whitespace_pattern": ""},
        {"suffix": None, "what_nobody_knows": None},
    ):
        if "best_of" in fields:
            fields.pop("best_of")
        reply = chat(s, **fields)
        assert reply.status == 200, f"{fields}: {reply.body}"
        assert 0 < reply.json["usage"]["completion_tokens"] <= 3 and reply.json["choices"][0]["finish_reason"]
    # A benchmark's first request names both limits, to the endpoint that has only one.
    reply = s.complete("Test connection", max_tokens=1, max_completion_tokens=1, stop=None, ignore_eos=True)
    assert reply.status == 200 and reply.json["usage"]["completion_tokens"] == 1, reply.body
    assert s.complete(response_format={"type": "text"}, suffix="", best_of=1, max_tokens=1).status == 200
    assert s.complete(messages=None, tools=None, top_logprobs=None, max_tokens=1).status == 200


def check_refused(s: Server) -> None:
    """What would change the reply and is not offered is never ignored: 400 with the field's name."""
    for param, fields in {
        "tools": {"tools": [TOOL]}, "tool_choice": {"tool_choice": "required"},
        "function_call": {"function_call": {"name": "clock"}}, "functions": {"functions": [TOOL["function"]]},
        "response_format": {"response_format": {"type": "json_object"}}, "audio": {"audio": {"voice": "x"}},
        "modalities": {"modalities": ["text", "audio"]}, "web_search_options": {"web_search_options": {"x": 1}},
        "guided_grammar": {"guided_grammar": "root ::= x"}, "bad_words": {"bad_words": ["x"]},
        "include_stop_str_in_output": {"include_stop_str_in_output": True},
        "continue_final_message": {"continue_final_message": True},
        "add_generation_prompt": {"add_generation_prompt": False}, "echo": {"echo": True},
        "stream_options": {"stream_options": {"include_usage": True}},
        "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
    }.items():
        reply = chat(s, **fields)
        assert reply.status == 400 and reply.error["param"] == param, f"{fields}: {reply.status} {reply.body}"
    named = chat(s, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "clock"}})
    assert named.error["param"] == "tool_choice"


def check_messages(s: Server) -> None:
    """Contents as texts and as parts, whatever the role: the same prompt."""
    for role in ("system", "developer", "user", "assistant", "tool"):
        said = [{"role": role, "content": "time runs on"}] + HI
        parts = [{"role": role, "content": [{"type": "text", "text": "time "}, {"type": "text", "text": "runs on"}]}] + HI
        more = [{"role": role, "content": "time runs on", "name": "x", "tool_call_id": "y", "refusal": None,
                 "tool_calls": [], "reasoning_content": None}] + HI
        mixed = [{"role": role, "content": ["time ", {"type": "input_text", "text": "ru"}, {"type": "output_text", "text": "ns"},
                                            {"type": "refusal", "refusal": " on"}]}] + HI
        texts = {chat(s, messages=m, temperature=0).json["choices"][0]["message"]["content"]
                 for m in (said, parts, more, mixed)}
        assert len(texts) == 1, (role, texts)
    assert chat(s, messages=[{"role": "assistant", "content": None}] + HI).status == 200
    assert chat(s, messages=[{"role": "user", "content": []}]).status == 200
    for bad in ([{"role": "user"}], [{"content": "x"}], ["x"], [None], {"role": "user"}, [{"role": "user", "content": 5}],
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
                [{"role": "user", "content": [{"type": "refusal", "text": "x"}]}], [{"role": "user", "content": [5]}],
                [{"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function"}]}]):
        reply = chat(s, messages=bad)
        assert reply.status == 400 and reply.error["param"].startswith("messages"), f"{bad}: {reply.body}"


def check_usage_in_streams(s: Server) -> None:
    """The usage so far in every chunk, as vLLM's benchmarks ask for it, and only when they do."""
    for path, fields in (("/v1/completions", {"prompt": "the state"}), ("/v1/chat/completions", {"messages": HI})):
        common = fields | {"max_tokens": 5, "stream": True, "ignore_eos": True, "seed": 1, "n": 2}
        options = {"include_usage": True, "continuous_usage_stats": True}
        *events, done = s.post(path, common | {"stream_options": options}).events()
        assert done == "[DONE]" and events[-1]["choices"] == []
        counts = [e["usage"]["completion_tokens"] for e in events]
        assert counts == sorted(counts) and counts[-1] == counts[-2] and 2 <= counts[-1] <= 10, counts
        assert len({e["usage"]["prompt_tokens"] for e in events}) == 1
        for options in ({"include_usage": False, "continuous_usage_stats": True}, {}, {"include_usage": None}):
            assert not any("usage" in e for e in s.post(path, common | {"stream_options": options}).events()[:-1])


def check_streams(s: Server) -> None:
    """Bytes of a stream: the role first, one reason for each choice, an empty line behind every event."""
    raw = s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 8, "stream": True, "n": 3, "seed": 5})
    assert raw.headers["content-type"].startswith("text/event-stream") and raw.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert all(line == b"" or line.startswith(b"data: ") for line in raw.body.split(b"\n"))
    for i in range(3):
        own = [c for e in raw.events()[:-1] for c in e["choices"] if c["index"] == i]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert not any("role" in c["delta"] for c in own[1:])
        assert [c["finish_reason"] for c in own].count(None) == len(own) - 1 and own[-1]["finish_reason"]
    heads = {(e["id"], e["object"], e["created"], e["model"]) for e in raw.events()[:-1]}
    assert len(heads) == 1 and heads.pop()[1] == "chat.completion.chunk"


def check_lines_of_streams(s: Server) -> None:
    """No byte of a stream ends a line for those who split it where Unicode does."""
    said = "one\u2028two\u2029three\x85four"
    for fields in ({"prompt": said, "echo": True, "logprobs": 1}, {"messages": [{"role": "user", "content": said}],
                                                                  "logprobs": True, "top_logprobs": 20}):
        chat_form = "messages" in fields
        ids = s.post("/tokenize", {"prompt": "\x85\u2028", "add_special_tokens": False}).json["tokens"]
        reply = s.post("/v1/chat/completions" if chat_form else "/v1/completions",
                       fields | {"stream": True, "max_tokens": 40, "allowed_token_ids": ids, "ignore_eos": True, "seed": 2})
        body = reply.body.decode()
        lines = body.split("\n")
        assert body.splitlines() == lines[:-1], [line for line in body.splitlines() if line not in lines]
        text = "".join(c["delta"].get("content", "") if chat_form else c["text"]
                       for e in reply.events()[:-1] for c in e["choices"])
        assert ("\x85" in text or "\u2028" in text) and (chat_form or text.startswith(said)), text


def check_stops_over_borders(s: Server) -> None:
    """A stop text across tokens is found whole, never sent in part; a beginning of one that does not come is sent."""
    fields = dict(prompt="the state", max_tokens=24, temperature=0, ignore_eos=True)
    whole = s.post("/v1/completions", fields).json["choices"][0]["text"]
    cases = [whole[i:i + n] for i in range(1, len(whole) - 12, 5) for n in (1, 4, 9)]
    for stop in cases:
        got = "".join(e["choices"][0]["text"]
                      for e in s.post("/v1/completions", fields | {"stop": stop, "stream": True}).events()[:-1])
        assert got == whole[:whole.index(stop)], (stop, got)
    for never in (whole[-3:] + "!", whole[-1] + "\x00", whole[5:9] + "!"):
        got = "".join(e["choices"][0]["text"]
                      for e in s.post("/v1/completions", fields | {"stop": [never], "stream": True}).events()[:-1])
        assert got == whole, (never, got)


def check_json(s: Server) -> None:
    """Texts that are hard to carry come through; what is no text is refused."""
    def ids(literal: str):
        return s.post("/tokenize", f'{{"prompt": "{literal}"}}')

    for literal, text in (("\\ud83d\\ude00", "\U0001f600"), ("a\\u0000b", "a\0b"), ("\\u2028\\u0085\\ufeff", "\u2028\x85\ufeff"),
                          ("\\/\\b\\f\\n\\r\\t\\\"", "/\b\f\n\r\t\"")):
        reply = ids(literal)
        assert s.post("/detokenize", {"tokens": reply.json["tokens"]}).json["prompt"] == text, literal
    for literal in ("\\ud83d", "\\ude00\\ud83d", "\\ud83dx", "\\x41", "\x01"):
        assert ids(literal).status == 400, literal
    assert s.post("/tokenize", b"\xef\xbb\xbf" + b'{"prompt": "x"}').status == 200, "a byte order mark in front"
    assert s.post("/tokenize", '{"prompt": "x"}'.encode("utf-16")).status == 400
    assert s.post("/tokenize", b"").status == 400
    # Half a character, alone: replaced, not a failure of the answer.
    half = [i for i in range(300) if "bytes:" in str(s.post("/detokenize", {"tokens": [i]}).body)]
    reply = s.post("/detokenize", {"tokens": s.post("/tokenize", {"prompt": "\U0001f600"}).json["tokens"][:1]})
    assert reply.status == 200 and "\ufffd" in reply.json["prompt"], (half, reply.body)


def raw_request(s: Server, line: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    head = "\r\n".join([line, f"Host: {host}", *headers, "", ""]).encode()
    return s.raw(head + body, timeout=5)


def check_http_forms(s: Server) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    json_type = "Content-Type: application/json"
    length = f"Content-Length: {len(body)}"
    post = "POST /v1/completions HTTP/1.1"
    for what, reply in {
        # Java's client asks for HTTP/2 in each first request; the answer is one in HTTP/1.1, body and all.
        "h2c": raw_request(s, post, json_type, length, "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c",
                           "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", body=body),
        "h2c chunked": raw_request(s, post, json_type, "Transfer-Encoding: chunked", "Upgrade: h2c",
                                   "Connection: Upgrade, HTTP2-Settings, close", "HTTP2-Settings: AAEAAEAAAAI",
                                   body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)),
        "chunks": raw_request(s, post, json_type, "Transfer-Encoding: Chunked", "Connection: close", "Trailer: x",
                              body=b"3;a=b\r\n%s\r\n%x\r\n%s\r\n0\r\nx: y\r\n\r\n" % (body[:3], len(body) - 3, body[3:])),
        "charset": raw_request(s, post, "Content-Type: Application/JSON; charset=UTF-8", length, "Connection: close",
                               body=body),
        "1.0": raw_request(s, "POST /v1/completions HTTP/1.0", json_type, length, body=body),
        "query": raw_request(s, "POST /v1/completions?api-version=2024-02-01&x=%00 HTTP/1.1", json_type, length,
                             "Connection: close", body=body),
        "expect": raw_request(s, post, json_type, length, "Expect: 100-Continue", "Connection: close", body=body),
        "absolute": raw_request(s, "POST http://localhost:1234/v1/completions HTTP/1.1", json_type, length,
                                "Connection: close", body=body, host="other.example"),
        "capitals": raw_request(s, post, json_type, length, "Connection: close", body=body, host="LocalHost:80"),
        "empty key": raw_request(s, post, json_type, length, "Connection: close", "Authorization: Bearer ", body=body),
    }.items():
        if what == "expect":
            assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), reply
        else:
            assert status_of(reply) == 200, f"{what}: {reply[:400]!r}"
        assert json.loads(reply[reply.rindex(b"\r\n\r\n") + 4:])["usage"]["completion_tokens"] == 1, what
    assert status_of(raw_request(s, "GET http://localhost HTTP/1.1", "Connection: close")) == 200, "the page"
    assert status_of(raw_request(s, "GET http://evil.example/v1/models HTTP/1.1", "Connection: close")) == 421
    # A line end behind a body, which is no part of it; the next request may come at once or later.
    one = f"{post}\r\nHost: localhost\r\n{json_type}\r\n{length}\r\n\r\n".encode() + body + b"\r\n"
    with s.connect(10) as c:
        c.sendall(one + one)
        time.sleep(0.3)
        c.sendall(b"\r\n" + one[:-2].replace(b"\r\nHost", b"\r\nConnection: close\r\nHost"))
        assert read_all(c).count(b"HTTP/1.1 200") == 3
    with s.connect(10) as c:  # and before the very first request
        c.sendall(b"\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status_of(read_all(c)) == 200
    reply = s.get("/health")
    assert abs(email.utils.parsedate_to_datetime(reply.headers["date"]).timestamp() - time.time()) < 60
    for hosts in ((), ("Host: localhost", "Host: evil.example"), ("Host: localhost",) * 2):
        raw = "\r\n".join(("GET /health HTTP/1.1", *hosts, "Connection: close", "", "")).encode()
        assert status_of(s.raw(raw)) == 400, hosts
    old = raw_request(s, "POST /v1/completions HTTP/1.0", json_type, length, "Expect: 100-continue", body=body)
    assert status_of(old) == 200, "HTTP/1.0 knows no 100"
    gzip = raw_request(s, post, json_type, length, "Content-Encoding: gzip", body=body)
    assert status_of(gzip) == 415 and b"content-encoding" in gzip
    old = raw_request(s, "GET /v1/models HTTP/1.0", "Connection: keep-alive")
    assert status_of(old) == 200 and b"connection: keep-alive" in old.lower()
    stream = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
    old = raw_request(s, "POST /v1/completions HTTP/1.0", json_type, f"Content-Length: {len(stream)}", body=stream)
    assert b"transfer-encoding" not in old.lower() and old.endswith(b"data: [DONE]\n\n"), old


def check_head(s: Server) -> None:
    """HEAD is GET without the body, and the connection goes on behind it."""
    assert s.complete("x", session="kept", max_tokens=1).status == 200
    connection = http.client.HTTPConnection(s.host, s.port, timeout=30)
    for path, status in (("/health", 200), ("/", 200), ("/v1/models", 200), ("/v1/models/run", 200), ("/metrics", 200),
                         ("/v1/sessions/kept", 200), ("/v1/sessions", 200), ("/nothing", 404), ("/v1/completions", 405)):
        connection.request("HEAD", path)
        reply = connection.getresponse()
        assert reply.status == status and int(reply.getheader("content-length")) > 0 and reply.read() == b"", path
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}, f"behind HEAD {path}"
    connection.close()
    assert s.get("/v1/sessions/kept").status == 200, "HEAD deletes nothing"


def check_addresses(s: Server) -> None:
    """A slip in the base address is answered with the address that was meant."""
    for path, meant in (("/chat/completions", "/v1/chat/completions"), ("/v1/v1/completions", "/v1/completions"),
                        ("/v1/chat/completions/chat/completions", None), ("/v1/models/", None),
                        ("/v1/chat/completions/", "/v1/chat/completions"), ("/openai/v1/models", "/v1/models"),
                        ("/models", "/v1/models"), ("/v1/responses", None), ("/v1/embeddings", None), ("/api/tags", None)):
        reply = s.get(path)
        assert reply.status == 404 and reply.error["message"].count(path[:40]) >= 1, reply.body
        if meant:
            assert f"did you mean {meant}?" in reply.error["message"], reply.error


def check_early_stops(s: Server) -> None:
    """min_tokens holds for stop strings too."""
    for stop in ([" "], list("aeiost nr")):
        reply = s.complete("the", max_tokens=20, min_tokens=6, temperature=0, stop=stop)
        assert reply.json["usage"]["completion_tokens"] >= 6, reply.body


def check_offsets(s: Server) -> None:
    """text_offset points into the text: special tokens have none, a stray byte is one U+FFFD."""
    ids = lambda text: s.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]  # noqa: E731
    o, n = ids("O")[0], ids("n")[0]
    accent = ids("\u00e9")  # two bytes
    end = s.post("/tokenize", {"prompt": "O", "add_special_tokens": True}).json["tokens"][0]
    for prompt in ([end, o, end, n], [accent[-1], o, n], accent + [o], [accent[0], o], [accent[0], accent[0], o]):
        choice = s.complete(prompt, max_tokens=0, echo=True, logprobs=0).json["choices"][0]
        text, offsets = choice["text"], choice["logprobs"]["text_offset"]
        for i, id in enumerate(prompt):
            if id in (o, n):
                assert text[offsets[i]] == ("O" if id == o else "n"), (prompt, text, offsets)
        assert offsets == sorted(offsets) and offsets[0] == 0
    # No character goes over the end of the prompt.
    choice = s.complete([o, accent[0]], max_tokens=2, echo=True, logprobs=0, allowed_token_ids=[accent[1]],
                        ignore_eos=True).json["choices"][0]
    assert choice["text"] == "O\ufffd\ufffd\ufffd" and choice["logprobs"]["text_offset"] == [0, 1, 2, 3], choice


def check_large_answers(s: Server) -> None:
    """What a short request can make of itself is bounded; a large piece of a stream is no slow reader's fault."""
    refused(s.complete([1] * 6000, max_tokens=0, echo=True, logprobs=20, n=16), "logprobs")
    fields = dict(prompt=[1, 2, 3, 4, 5] * 1000, max_tokens=2, echo=True, logprobs=20, ignore_eos=True, seed=3, n=2)
    whole = s.complete(**fields).json["choices"]
    *events, done = s.complete(**fields, stream=True).events()
    assert done == "[DONE]"
    for i in range(2):
        parts = [c for e in events for c in e["choices"] if c["index"] == i]
        assert "".join(c["text"] for c in parts) == whole[i]["text"]
        assert sum((c["logprobs"]["token_logprobs"] for c in parts if c["logprobs"]), []) == whole[i]["logprobs"]["token_logprobs"]


def check_numbers(s: Server) -> None:
    """A message shows the number that it refuses, and seeds have all their 64 bits."""
    assert "2.0" in s.complete("x", max_tokens=2.0).error["message"]
    assert "1.0000001" in s.complete("x", top_p=1.0000001).error["message"]
    a, b = (s.complete("x", max_tokens=8, temperature=2, seed=seed).json["choices"][0]["text"] for seed in (2**64 - 1, -1))
    assert a == b
    refused(s.complete("x", seed=2**64), "seed")
    assert "a text or a list" in s.complete(5).error["message"]
    for content in ({"content": None}, {}):
        refused(s.post("/v1/chat/completions", {"messages": [{"role": "user", **content}]}), "messages[0].content")


def check_many(s: Server) -> None:
    """Who reads an answer and leaves is not one who left before its end."""
    before = s.metric("laplace:disconnects_total")
    for _ in range(300):
        raw = s.connect(10)
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += raw.recv(4096)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        rest = length - len(head.split(b"\r\n\r\n", 1)[1])
        while rest > 0:
            rest -= len(raw.recv(rest))
        raw.close()
    time.sleep(0.2)
    assert s.metric("laplace:disconnects_total") == before


def check_models(program) -> None:
    """A name with a slash, as it is given on the hub, escaped as clients do."""
    with Server(program, "--served-model-name", "org/small model") as s:
        client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0)
        assert client.models.retrieve("org/small model").id == "org/small model"
        for path in ("org/small%20model", "org%2Fsmall%20model", "org%2fsmall%20model"):
            assert s.get(f"/v1/models/{path}").status == 200, path
        for path in ("org%2Fsmall", "org%2", "%", "%zz", "org%252Fsmall%20model", "org%00/small%20model"):
            assert s.get(f"/v1/models/{path}").status == 404, path
        assert s.complete(model="org/small model", max_tokens=1).json["model"] == "org/small model"
        assert s.complete(model="small model", max_tokens=1).error["code"] == "model_not_found"
        assert s.complete(model="", max_tokens=1).status == 200


def check_preflight(program) -> None:
    """A page with OpenAI's library, whose own headers the preflight lists."""
    asked = "authorization,content-type,x-stainless-arch,x-stainless-os,x-stainless-retry-count"
    with Server(program, "--cors-origin", "*") as s:
        headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        reply = s.request("OPTIONS", "/v1/chat/completions", headers=headers | {"Access-Control-Request-Headers": asked})
        assert reply.status == 204 and reply.headers["access-control-allow-headers"] == asked
        assert "content-length" not in reply.headers, "204 has no body, and so no length"
        odd = s.request("OPTIONS", "/v1/models", headers=headers | {"Access-Control-Request-Headers": "a;b<"})
        assert odd.headers["access-control-allow-headers"].startswith("authorization")
        reply = s.get("/v1/models", headers={"Origin": "https://a.example"})
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        # A page shall learn why it was refused, whoever refuses.
        for headers, body in (({"Content-Encoding": "gzip"}, b"{}"), ({}, b" " * (9 << 20)), ({"Content-Type": "x/y"}, b"{}")):
            reply = s.request("POST", "/v1/completions", body, {"Origin": "https://a.example"} | headers)
            assert reply.status in (413, 415) and reply.headers["access-control-allow-origin"], reply.headers


def check_too_many(program) -> None:
    """What can never have room is refused for good, not until later."""
    with Server(program, "--slots", "1", "--max-waiting", "4") as s:
        refused(s.complete("x", n=6, max_tokens=1), "prompt")
        refused(s.complete(["x"] * 7, max_tokens=1), "prompt")
        assert s.complete("x", n=5, max_tokens=1).status == 200


def check_tokenizing_counts(program) -> None:
    """Every request of a key counts, whatever it asks for; and those of others do not wait behind it."""
    keys = {"LAPLACE_API_KEY": "one-key-of-sixteen-letters,another-key-of-sixteen-letters"}
    text = "time runs on " * 500_000
    with Server(program, "--max-concurrent-per-key", "2", env=keys) as s:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda i: s.post("/tokenize", {"prompt": text}), range(12)))
        assert {r.status for r in replies} == {200, 429}, [r.status for r in replies]
        wait_for(lambda: s.metric("laplace:requests_active") == 0)


def check_over_time(program) -> None:
    """A request past its time is not sent again: it would take its time again."""
    with Server(program, "--max-request-time", "0.5", "--max-tokens-limit", "100000000") as s:
        fields = dict(prompt="x", max_tokens=100_000_000, extra_body={"ignore_eos": True})
        begun = time.monotonic()
        try:
            openai.OpenAI(base_url=s.url + "/v1", api_key="x").completions.create(model="run", **fields)
            raise AssertionError("no error")
        except openai.InternalServerError as error:
            assert error.status_code == 504 and error.code == "deadline" and "retry-after" not in error.response.headers
        assert time.monotonic() - begun < 1.4, "asked more than once"
        events = s.complete("x", max_tokens=100_000_000, ignore_eos=True, stream=True).events()
        assert events[-2]["error"]["code"] == "deadline" and events[-1] == "[DONE]"


def check_heartbeat(program) -> None:
    """While a long prompt is read, its stream says that it lives; what reads it is none the wiser."""
    prompt = [1, 2, 3, 4] * 15_000
    with Server(program, "--heartbeat", "0.1") as s:
        reply = s.complete(prompt, max_tokens=3, stream=True, ignore_eos=True, temperature=0)
        beats = reply.body.count(b": reading the prompt\n\n")
        assert beats >= 2 and reply.body.startswith(b": reading"), reply.body[:200]
        stream = openai.OpenAI(base_url=s.url + "/v1", api_key="x").completions.create(
            model="run", prompt=prompt, max_tokens=3, stream=True, temperature=0,
            extra_body={"ignore_eos": True})
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert text == s.complete(prompt, max_tokens=3, ignore_eos=True, temperature=0).json["choices"][0]["text"]
        assert s.alive() and s.stop() == 0, s.log()
    with Server(program, "--heartbeat", "0") as s:
        assert b": reading" not in s.complete(prompt, max_tokens=3, stream=True).body


def check_unsaved(program) -> None:
    """A reply that could not be saved is no success: the next one would not know it."""
    with Server(program) as s:
        assert s.complete("x", session="a", max_tokens=2).status == 200
        (s.program.dir / s.state / "public" / "b.session.tmp").mkdir()  # in the way of what is written
        reply = s.complete("y", session="b", max_tokens=2)
        assert reply.status == 503 and reply.error["code"] == "session_not_saved" and "retry-after" in reply.headers
        events = s.complete("y", session="b", max_tokens=2, stream=True).events()
        assert events[-2]["error"]["code"] == "session_not_saved" and events[-1] == "[DONE]", events[-2:]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program) as s:
            run_checks((check_taken, check_refused, check_messages, check_usage_in_streams, check_streams, check_lines_of_streams,
                        check_stops_over_borders, check_json, check_http_forms, check_head, check_addresses, check_early_stops, check_offsets, check_large_answers, check_numbers,
                        check_many), s)
            assert s.alive() and s.stop() == 0, s.log()
        run_checks((check_models, check_preflight, check_too_many, check_tokenizing_counts, check_over_time, check_heartbeat, check_unsaved), program)


if __name__ == "__main__":
    main()
