"""Checks of security_test.py: who may do what, and what lies on the disk."""

import base64
import json
import os
import struct

from server import KEY, MB, OTHER_KEY, Server, post_head, refused, session_file, status_of, wait_for


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
