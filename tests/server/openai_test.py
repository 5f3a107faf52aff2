"""The API as its clients use it: the openai library, curl, and the requests of vLLM's benchmark.

    python openai_test.py PROGRAM
"""

import json
import shutil
import subprocess
import sys
import tempfile

import openai
from server import KEY, Server, make_model, run_checks, wait_for

MESSAGES = [{"role": "system", "content": "the state of a model"}, {"role": "user", "content": "time runs on"}]


def check_models(client: openai.OpenAI, s: Server) -> None:
    models = client.models.list().data
    assert [m.id for m in models] == ["run"] and models[0].owned_by == "laplace"
    assert client.models.retrieve("run").id == "run"
    assert s.get("/v1/models").json["data"][0]["root"].startswith("run/checkpoints/")


def check_completions(client: openai.OpenAI, s: Server) -> None:
    fields = dict(model="run", prompt="the state", max_tokens=12, temperature=0)
    whole = client.completions.create(**fields, logprobs=3)
    choice = whole.choices[0]
    assert whole.object == "text_completion" and choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 12 and whole.usage.total_tokens == 12 + whole.usage.prompt_tokens
    assert len(choice.logprobs.tokens) == 12 and "".join(choice.logprobs.tokens) == choice.text
    for token, value, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
        assert top[token] == value == max(top.values()) and len(top) == 3, "greedy takes the likeliest"
    assert choice.logprobs.text_offset == [len("".join(choice.logprobs.tokens[:i])) for i in range(12)]
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == choice.text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None for c in chunks[:-1]) and len({c.id for c in chunks}) == 1
    # Lists of texts and ids; equal prompts, equal texts.
    ids = s.post("/tokenize", {"prompt": "the state", "add_special_tokens": True}).json["tokens"]
    several = client.completions.create(**fields | {"prompt": ["the state", "rooms"]}, n=2)
    assert [c.index for c in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == choice.text != several.choices[2].text
    by_ids = client.completions.create(**fields | {"prompt": [ids, ids]})
    assert [c.text for c in by_ids.choices] == [choice.text] * 2
    # Equal seeds, equal texts; choices of one request have seeds of their own.
    drawn = [client.completions.create(**fields | {"temperature": 1}, seed=7, n=3) for _ in range(2)]
    assert [c.text for c in drawn[0].choices] == [c.text for c in drawn[1].choices]
    assert len({c.text for c in drawn[0].choices}) > 1


def check_stops(client: openai.OpenAI, s: Server) -> None:
    whole = client.completions.create(model="run", prompt="the state", max_tokens=30, temperature=0).choices[0].text
    word = whole.split()[1]
    for stop in (word, ["nothing", word], [word[:3] + word[3:], "zzz"]):
        cut = client.completions.create(model="run", prompt="the state", max_tokens=30, temperature=0, stop=stop)
        assert cut.choices[0].text == whole[:whole.index(word)] and cut.choices[0].finish_reason == "stop"
    chunks = list(client.completions.create(model="run", prompt="the state", max_tokens=30, temperature=0, stop=word,
                                            stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole[:whole.index(word)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    first = s.post("/tokenize", {"prompt": whole}).json["tokens"][0]
    only = client.completions.create(model="run", prompt="x", max_tokens=5, extra_body={
        "allowed_token_ids": [first], "min_tokens": 5, "ignore_eos": True, "top_k": 3, "min_p": 0.1,
        "repetition_penalty": 1.1})
    assert len(set(s.post("/tokenize", {"prompt": only.choices[0].text}).json["tokens"])) == 1
    never = client.completions.create(model="run", prompt="the state", max_tokens=30, temperature=0,
                                      logit_bias={str(first): -100})
    assert first not in s.post("/tokenize", {"prompt": never.choices[0].text}).json["tokens"]


def check_chat(client: openai.OpenAI, s: Server) -> None:
    fields = dict(model="run", messages=MESSAGES, max_tokens=10, temperature=0)
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("length", "stop")
    for item in choice.logprobs.content:
        assert len(item.top_logprobs) == 2 and item.top_logprobs[0].logprob == item.logprob
        assert bytes(item.bytes).decode() == item.token
    chunks = list(client.chat.completions.create(**fields, stream=True, logprobs=True,
                                                 stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    chunks.pop()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == choice.message.content
    parts = [{"role": "user", "content": [{"type": "text", "text": "time runs "}, {"type": "text", "text": "on"}]}]
    again = client.chat.completions.create(**fields | {"messages": MESSAGES[:1] + parts})
    assert again.choices[0].message.content == choice.message.content
    new = client.chat.completions.create(model="run", messages=MESSAGES, max_completion_tokens=2)
    assert new.usage.completion_tokens <= 2


def check_errors(client: openai.OpenAI, s: Server) -> None:
    def error(kind, **fields) -> openai.APIStatusError:
        try:
            client.completions.create(**{"model": "run", "prompt": "x"} | fields)
        except kind as e:
            return e
        raise AssertionError(f"no {kind.__name__} for {fields}")

    bad = error(openai.BadRequestError, max_tokens=-1)
    assert bad.param == "max_tokens" and bad.type == "invalid_request_error" and "max_tokens" in bad.message
    assert error(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    try:
        openai.OpenAI(base_url=client.base_url, api_key="wrong-key-0123456789").models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key"
    assert bad.response.headers["x-request-id"]


def check_prefix_cache(client: openai.OpenAI, s: Server) -> None:
    """Every cut of a prompt: found tokens are counted, and the answer has the same bits."""
    text = "the quiet rooms of a model run on while texts grow and time keeps the state " * 4
    ids = s.post("/tokenize", {"prompt": text}).json["tokens"][:64]

    def ask(prompt, **more):
        return s.complete(prompt, max_tokens=4, temperature=0, logprobs=5, **more).json

    for cut in (1, 2, 3, 5, 17, 31, 63, 64):
        salt = f"cut-{cut}"
        cold = ask(ids, cache_salt=f"cold-{cut}")
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        ask(ids[:cut], cache_salt=salt)
        while True:  # the state is kept a moment after the answer
            warm = ask(ids, cache_salt=salt)
            if (cached := warm["usage"]["prompt_tokens_details"]["cached_tokens"]) > 0:
                break
        assert cached in (cut, 64) and warm["choices"] == cold["choices"], f"cut {cut}: {cached}"
    evaluated = s.metric("laplace:engine_prompt_tokens_total")
    exact = ask(ids, cache_salt="cut-64")
    assert exact["usage"]["prompt_tokens_details"]["cached_tokens"] == 64 and exact["choices"] == cold["choices"]
    assert s.metric("laplace:engine_prompt_tokens_total") == evaluated, "an exact hit evaluates nothing"


def check_tokens(client: openai.OpenAI, s: Server) -> None:
    for text in ("the state", "", "a\u00e9\U0001f600 \u6f22", "<|endoftext|>"):
        ids = s.post("/tokenize", {"prompt": text}).json
        assert ids["count"] == len(ids["tokens"])
        assert s.post("/detokenize", {"tokens": ids["tokens"]}).json["prompt"] == text
    assert s.post("/detokenize", {"tokens": [511]}).status == 400, "beyond the tokenizer's vocabulary"
    assert len(s.post("/tokenize", {"prompt": "the", "return_token_strs": True}).json["token_strs"]) > 0


def check_curl(client: openai.OpenAI, s: Server) -> None:
    if shutil.which("curl") is None:
        print("NOT RUN: curl is not here", file=sys.stderr)
        return

    def curl(*arguments) -> str:
        done = subprocess.run(["curl", "-sS", "-N", "-H", f"Authorization: Bearer {KEY}", *arguments],
                              capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    json_type = ("-H", "Content-Type: application/json")
    out = curl(f"{s.url}/v1/completions", *json_type, "-d", '{"prompt": "Once", "max_tokens": 5}')
    assert json.loads(out)["usage"]["completion_tokens"] <= 5
    out = curl(f"{s.url}/v1/chat/completions", *json_type, "-d",
               '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": true}')
    assert out.endswith("data: [DONE]\n\n")
    big = json.dumps({"prompt": "x " * 700_000})  # so long that curl asks first: Expect: 100-continue
    (s.program.dir / "big.json").write_text(big)
    out = curl(f"{s.url}/tokenize", *json_type, "-d", f"@{s.program.dir / 'big.json'}")
    assert json.loads(out)["count"] > 100_000
    assert curl("-o", "/dev/null", "-w", "%{http_code} %{num_connects}", f"{s.url}/health").startswith("200")


def check_vllm_bench_form(client: openai.OpenAI, s: Server) -> None:
    """What `vllm bench serve` sends and how it reads the answer."""
    assert s.get("/v1/models").json["data"][0]["root"]
    common = {"model": "run", "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
              "ignore_eos": True}
    payloads = {
        "/v1/completions": common | {"prompt": "the rooms", "repetition_penalty": 1.0, "max_tokens": 20,
                                     "logprobs": None, "min_tokens": 20},
        "/v1/chat/completions": common | {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "the rooms"}]}], "max_completion_tokens": 20, "stop": None}}
    for path, payload in payloads.items():
        reply = s.post(path, payload, headers={"x-request-id": "bench-17"})
        assert reply.headers["x-request-id"] == "bench-17"
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = reply.events()
        assert events[-1] == "[DONE]"
        usage = [e for e in events[:-1] if not e["choices"]]
        assert len(usage) == 1 and usage[0] is events[-2], "usage is the last, in a chunk of its own"
        if path.endswith("chat/completions"):
            assert usage[0]["usage"]["completion_tokens"] <= 20
            continue
        assert usage[0]["usage"]["completion_tokens"] == 20
        assert sum("text" in e["choices"][0] for e in events[:-2]) >= 20, "a chunk a token"


def check_metrics(client: openai.OpenAI, s: Server) -> None:
    text = s.get("/metrics").body.decode()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
                 "vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket",
                 "vllm:e2e_request_latency_seconds_bucket", "vllm:request_queue_time_seconds_sum",
                 "laplace:state_slots", "laplace:session_hits_total", "laplace:prefill_share",
                 "process_resident_memory_bytes"):
        assert f"\n{name}{{" in text, name
    buckets = [line for line in text.splitlines() if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    counts = [int(line.split()[-1]) for line in buckets]
    assert counts == sorted(counts) and counts[-1] > 0 and 'le="+Inf"' in buckets[-1] and 'le="0.001"' in buckets[0]
    version = s.get("/version").json
    assert version["version"] and "cpu" in version["engine"]


def check_cors_and_log(program) -> None:
    with Server(program, "--cors-origin", "https://app.example", "--access-log", "access.jsonl") as s:
        origin = {"Origin": "https://app.example"}
        reply = s.request("OPTIONS", "/v1/completions", headers=origin | {"Access-Control-Request-Method": "POST"})
        assert reply.status == 204 and reply.headers["access-control-allow-origin"] == origin["Origin"]
        other = s.request("OPTIONS", "/v1/completions", headers={"Origin": "https://evil.example"})
        assert other.status == 405 and "access-control-allow-origin" not in other.headers
        for reply in (s.get("/v1/models", headers=origin),
                      s.post("/v1/completions", {"prompt": "secret words", "max_tokens": 3}, headers=origin)):
            assert reply.headers["access-control-allow-origin"] == origin["Origin"], reply.headers
        path = program.dir / "access.jsonl"
        # A line is written when the answer has gone out: the client may be faster.
        wait_for(lambda: "/v1/completions" in path.read_text().splitlines()[-1], what="the request's line")
        log = path.read_text()
        line = json.loads(log.splitlines()[-1])
        assert line["path"] == "/v1/completions" and line["status"] == 200 and line["completion_tokens"] <= 3, line
        assert "secret" not in log, "texts are not for the log"


def check_chatml(program) -> None:
    with Server(program, "--chat-template", "chatml") as s:
        assert s.get("/version").json["chat_template"] == "chatml"
        plain = s.chat("hi", max_tokens=1).json["usage"]["prompt_tokens"]
        assert plain > 20, "the marks are there"
    model = next(p for p in (program.dir / "run" / "checkpoints").iterdir() if p.is_dir())
    own = program.dir / "own"
    shutil.copytree(model, own)
    (own / "manifest.json").unlink()
    (own / "generation_config.json").write_text('{"chat_template": "chatml"}')
    with Server(program, model="own") as s:
        assert s.get("/version").json["chat_template"] == "chatml"
        assert s.get("/v1/models").json["data"][0]["id"] == "own"
    (own / "generation_config.json").write_text('{"chat_template": "{{ x }}"}')
    program.refuse("serve", "--model", "own", "--port", 0, says="chat_template")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program, env={"LAPLACE_API_KEY": KEY}) as s:
            client = openai.OpenAI(base_url=f"{s.url}/v1", api_key=KEY, max_retries=0)
            run_checks((check_models, check_completions, check_stops, check_chat, check_errors, check_prefix_cache,
                        check_tokens, check_curl, check_vllm_bench_form, check_metrics), client, s)
            assert s.stop() == 0, s.log()
        run_checks((check_cors_and_log, check_chatml), program)


if __name__ == "__main__":
    main()
