"""Sessions: what they continue, what they cost, forks, and kill -9 at random moments.

    python sessions_test.py PROGRAM [CONVERSATIONS KILLS]
"""

import concurrent.futures
import http.client
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

from server import Server, make_model, refused, run_checks, wait_for

GREEDY = {"temperature": 0, "max_tokens": 6}


def usage(reply) -> tuple[int, int]:
    assert reply.status == 200, reply.body
    u = reply.json["usage"]
    return u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]


def text(reply) -> str:
    assert reply.status == 200, reply.body
    choice = reply.json["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def check_only_new_text(s: Server) -> None:
    evaluated = lambda: s.metric("laplace:engine_prompt_tokens_total")  # noqa: E731
    first = s.complete("the state of a model", session="a", **GREEDY)
    position = s.get("/v1/sessions/a").json["position"]
    assert usage(first)[0] + 6 == position
    before = evaluated()
    second = s.complete(" keeps its size", session="a", **GREEDY)
    new = s.post("/tokenize", {"prompt": " keeps its size"}).json["count"]
    assert usage(second) == (position + new, position)
    assert evaluated() - before == new, "nothing of the past is read again"
    # The same as one long prompt without a session.
    ids = [*s.post("/tokenize", {"prompt": "the state of a model", "add_special_tokens": True}).json["tokens"]]
    reply_ids = s.complete("the state of a model", logprobs=0, **GREEDY).json["choices"][0]["logprobs"]["tokens"]
    ids += [s.post("/tokenize", {"prompt": t}).json["tokens"][0] for t in reply_ids]
    ids += s.post("/tokenize", {"prompt": " keeps its size"}).json["tokens"]
    assert text(s.complete(ids, **GREEDY)) == text(second)


def check_chat_forms(s: Server) -> None:
    """The new message alone, or the whole conversation: the same reply, and little is evaluated."""
    one = text(s.chat("time runs on", session="new", **GREEDY))
    assert text(s.chat("time runs on", session="whole", **GREEDY)) == one
    a = s.chat("through rooms", session="new", **GREEDY)
    b = s.chat("time runs on", ("assistant", one), "through rooms", session="whole", **GREEDY)
    assert text(a) == text(b) and usage(a) == usage(b) and usage(b)[1] > 0
    # A conversation that was edited begins anew from its text.
    c = s.chat("time stood still", ("assistant", one), "through rooms", session="whole", **GREEDY)
    assert text(c) == text(s.chat("time stood still", ("assistant", one), "through rooms", **GREEDY))
    assert s.get("/v1/sessions/whole").json["turns"] == 1
    # Forced forms.
    d = s.chat("more", session="new", session_input="whole", **GREEDY)
    assert text(d) == text(s.chat("more", **GREEDY))
    e = s.chat("x", ("assistant", "y"), session="new", session_input="new", **GREEDY)
    assert usage(e)[1] > 0
    # Kinds do not mix.
    assert s.complete("x", session="new").status == 409


def check_stop_strings(s: Server) -> None:
    """A stop string that has been fed is not fed twice; the conversation goes on as one text."""
    reply = s.chat("the rooms", session="stop", temperature=0, max_tokens=30, stop=[" "])
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    again = s.chat("the rooms", ("assistant", text(reply)), "and", session="stop", **GREEDY)
    assert usage(again)[1] > 0, "the whole conversation is recognised after a stop string"
    # The message's end follows all the same: as many new tokens as behind a reply that ended at its length.
    new = lambda name: (lambda u: u[0] - u[1])(usage(s.chat("next", session=name, session_input="new", max_tokens=0)))  # noqa: E731
    s.chat("the rooms", session="by-length", temperature=0, max_tokens=3, ignore_eos=True)
    for stop in (" ", "q", "e"):
        name = f"by-stop-{ord(stop)}"
        reply = s.chat("the rooms", session=name, temperature=0, max_tokens=200, stop=[stop], ignore_eos=True)
        assert reply.json["choices"][0]["finish_reason"] == "stop", (stop, reply.body)
        assert new(name) == new("by-length"), stop


def check_fork_list_delete(s: Server) -> None:
    s.complete("a quiet room", session="trunk", **GREEDY)
    fork = s.post("/v1/sessions/trunk/fork", {"name": "branch"})
    assert fork.status == 200 and fork.json["id"] == "branch"
    named = {x["id"] for x in s.get("/v1/sessions").json["data"]}
    assert {"trunk", "branch"} <= named
    a, b = (text(s.complete(" and", session=n, **GREEDY)) for n in ("trunk", "branch"))
    assert a == b
    s.complete(" more", session="trunk", **GREEDY)
    assert s.get("/v1/sessions/trunk").json["turns"] == 3 and s.get("/v1/sessions/branch").json["turns"] == 2
    for name in ("branch", "trunk"):
        refused(s.post("/v1/sessions/trunk/fork", {"name": name}), "name", 409)
    assert s.post("/v1/sessions/none/fork", {"name": "x"}).status == 404
    assert len(s.post("/v1/sessions/trunk/fork", {}).json["id"]) > 10
    assert s.request("DELETE", "/v1/sessions/branch").json["deleted"] is True
    assert s.request("DELETE", "/v1/sessions/branch").status == 404
    assert s.get("/v1/sessions/branch").status == 404
    assert s.complete("x", session="trunk", n=2).status == 400


def check_one_at_a_time(s: Server) -> None:
    s.complete("x", session="busy", **GREEDY)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda i: s.complete(f" {i}", session="busy", **GREEDY), range(6)))
    assert all(r.status == 200 for r in replies), "short ones wait for each other"
    assert s.get("/v1/sessions/busy").json["turns"] == 7
    thread = threading.Thread(target=lambda: s.complete("x", session="busy", max_tokens=30_000, ignore_eos=True))
    thread.start()
    wait_for(lambda: s.metric("laplace:sessions_in_use") == 1)
    busy = s.request("DELETE", "/v1/sessions/busy")
    assert busy.status == 409 and "x-should-retry" not in busy.headers
    assert s.post("/v1/sessions/busy/fork", {}).status == 409
    thread.join()
    # A reply that its client leaves is none: the session is what it was.
    before = s.get("/v1/sessions/busy").json
    try:
        s.post("/v1/completions", {"prompt": "x", "session": "busy", "max_tokens": 900_000, "ignore_eos": True}, timeout=0.3)
        raise AssertionError("there was an answer")
    except TimeoutError:
        pass
    wait_for(lambda: s.metric("laplace:sessions_in_use") == 0)
    assert s.get("/v1/sessions/busy").json == before


def check_memory_bound(program) -> None:
    with Server(program, "--session-memory", "40KB", state="bound") as s:
        for i in range(20):
            assert s.complete(f"room {i}", session=f"s{i}", **GREEDY).status == 200
        assert s.metric("laplace:session_memory_bytes") <= 40_000
        assert s.metric("laplace:session_evictions_total") > 0
        loads = s.metric("laplace:session_loads_total")
        cold = s.complete(" and", session="s0", **GREEDY)
        assert s.metric("laplace:session_loads_total") == loads + 1 and usage(cold)[1] > 0
        hits = s.metric("laplace:session_hits_total")
        s.complete(" and", session="s0", **GREEDY)
        assert s.metric("laplace:session_hits_total") == hits + 1


def check_bounds_together(program) -> None:
    """Requests that come at once do not pass a bound together."""
    for flags in (("--max-sessions", "3"), ("--session-quota", "20KB")):
        with Server(program, *flags, state="quota" + flags[0]) as s:
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                replies = list(pool.map(lambda i: s.complete("x", session=f"s{i}", max_tokens=3), range(24)))
            assert {r.status for r in replies} == {200, 507}, [r.status for r in replies]
            saved = s.get("/v1/sessions").json["data"]
            assert 1 <= len(saved) == sum(r.status == 200 for r in replies) <= 4, len(saved)
            name = saved[0]["id"]
            assert s.complete("y", session=name, max_tokens=1).status == 200, "those that are there go on"
            assert s.request("DELETE", f"/v1/sessions/{name}").status == 200
            assert s.complete("x", session="another", max_tokens=1).status == 200


def check_odd_files(program) -> None:
    """A session that cannot be read is refused by itself: the list and the others stay."""
    folder = program.dir / "odd" / "public"
    with Server(program, state="odd") as s:
        for name in ("good", "big", "half"):
            assert s.complete("x", session=name, **GREEDY).status == 200
    (folder / "link.session").symlink_to("/etc/passwd")
    os.truncate(folder / "big.session", 3 << 30)
    (folder / "half.session.tmp").write_bytes(b"of a killed process")
    (folder / "gone.session.tmp").write_bytes(b"of a killed process")
    with Server(program, state="odd") as s:
        assert not list(folder.glob("*.tmp")), "left-overs of killed processes stay"
        listed = {x["id"]: x["position"] for x in s.get("/v1/sessions").json["data"]}
        assert set(listed) == {"good", "big", "half", "link"} and not listed["link"] and listed["good"]
        rss = s.rss()
        for name in ("link", "big"):
            reply = s.complete("y", session=name, max_tokens=1)
            assert reply.status == 409 and reply.error["code"] == "session_refused", reply.body
            assert reply.headers["x-should-retry"] == "false"
            assert "/" not in reply.error["message"].replace("and/or", ""), reply.error
            refused(s.post(f"/v1/sessions/{name}/fork", {}), "session", 409)
        assert s.get("/v1/sessions/link").status == 409
        assert s.rss() < rss + (64 << 20), "a file of 3 GB was read"
        assert s.complete("y", session="big", session_input="whole", max_tokens=1).status == 200
        for name in ("link", "big", "good"):
            assert s.request("DELETE", f"/v1/sessions/{name}").status == 200
        assert pathlib.Path("/etc/passwd").exists()
        assert [x["id"] for x in s.get("/v1/sessions").json["data"]] == ["half"]


def check_long_session(program) -> None:
    """After 100,000 tokens a turn evaluates as much as after 100, and stores as many bytes."""
    with Server(program, "--access-log", "off", state="long") as s:
        work, sizes, seconds = [], [], []
        for name, tokens in (("short", 100), ("long", 100_000)):
            s.complete([5] * tokens, session=name, max_tokens=1, ignore_eos=True)
            before = s.metric("laplace:engine_prompt_tokens_total")
            times = []
            for _ in range(20):
                begun = time.perf_counter()
                s.complete(" and", session=name, max_tokens=4, ignore_eos=True)
                times.append(time.perf_counter() - begun)
            work.append(s.metric("laplace:engine_prompt_tokens_total") - before)
            info = s.get(f"/v1/sessions/{name}").json
            assert info["position"] > tokens
            sizes.append(info["bytes"])
            seconds.append(sorted(times)[10])
        assert work[0] == work[1], work
        assert abs(sizes[0] - sizes[1]) < 1000, sizes
        print(f"  a turn after 100 tokens {seconds[0] * 1e3:.1f} ms, after 100,000 {seconds[1] * 1e3:.1f} ms (medians)")


def check_kills(program, conversations: int, kills: int) -> None:
    """kill -9 at random: every conversation goes on from its last whole reply, token for token."""
    turns = 6
    rng = random.Random(4)
    words = ["the quiet rooms", "time runs on", "a model", "its size", "texts grow", "of the state"]
    said = {f"c{c}": [rng.choice(words) for _ in range(turns)] for c in range(conversations)}

    def expected(s: Server, name: str) -> list[str]:
        return [text(s.chat(m, session="x" + name, seed=i, temperature=1, max_tokens=5)) for i, m in enumerate(said[name])]

    with Server(program, "--slots", 4, state="unbroken") as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        whole = dict(zip(said, pool.map(lambda n: expected(s, n), said)))

    server = Server(program, "--slots", 4, "--access-log", "off", state="killed")
    server.start()
    got = {name: [] for name in said}

    def converse(name: str) -> None:
        while len(got[name]) < turns:
            turn = len(got[name])
            try:
                reply = server.chat(said[name][turn], session=name, seed=turn, temperature=1, max_tokens=5)
                assert reply.status == 200, f"{name}: {reply.body}"
                got[name].append(text(reply))
                continue
            except (OSError, ValueError, EOFError, http.client.HTTPException):
                pass
            # The reply was lost. Was it saved? Then the session is one turn further than we are.
            while True:
                try:
                    info = server.get(f"/v1/sessions/{name}")
                    break
                except (OSError, http.client.HTTPException):
                    time.sleep(0.05)
            turns_saved = info.json["turns"] if info.status == 200 else 0
            assert turns_saved in (turn, turn + 1), f"{name}: {turns_saved} replies saved, {turn} seen"
            if turns_saved == turn + 1:
                got[name].append(None)  # saved whole, never seen

    replies = lambda: sum(map(len, got.values()))  # noqa: E731
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(converse, name) for name in rng.sample(sorted(said), len(said))]
        for kill in range(kills):
            # Spread over the whole run, at a random moment of a turn.
            due = (kill + rng.random()) / kills * 0.95 * turns * conversations
            while replies() < due and not any(f.done() and f.exception() for f in running):
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.02))
            server.kill()
            server.start(server.port)
        for future in running:
            future.result()
    lost = sum(reply is None for replies in got.values() for reply in replies)
    for name, replies in got.items():
        for turn, reply in enumerate(replies):
            assert reply in (None, whole[name][turn]), f"{name} turn {turn}: {reply!r}, not {whole[name][turn]!r}"
    assert server.stop() == 0
    assert not list((program.dir / "killed").glob("*/*.tmp")), "what was being written is left"
    print(f"  {kills} kills among {conversations} conversations of {turns} turns; {lost} replies saved but not seen")


def main() -> None:
    conversations = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 6
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program, "--slots", 4) as s:
            run_checks((check_only_new_text, check_chat_forms, check_stop_strings, check_fork_list_delete,
                        check_one_at_a_time), s)
            assert s.stop() == 0, s.log()
        run_checks((check_memory_bound, check_bounds_together, check_odd_files, check_long_session), program)
        run_checks((check_kills,), program, conversations, kills)


if __name__ == "__main__":
    main()
