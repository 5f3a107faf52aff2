"""The page in headless Chromium: chat, stop, edit, fork, reload, phone width, keys; no console errors.

    python page_test.py PROGRAM [DIRECTORY_FOR_SCREENSHOTS [MODEL]]
"""

import pathlib
import sys
import tempfile
import time

import browser
from server import Server, make_model, run_checks

MESSAGES = "document.querySelectorAll('.message').length"
IDLE = "document.querySelector('#send').textContent === 'Send'"


def last_reply(b) -> str:
    return b.run("[...document.querySelectorAll('.message.assistant .body')].at(-1)?.textContent || ''")


def say(b, text: str, tokens: int = 24) -> None:
    b.run(f"document.querySelector('#tokens').value = {tokens}; document.querySelector('#input').focus()")
    b.type(text)
    before = b.run(MESSAGES)
    b.press("Enter", 13)
    b.wait(f"{MESSAGES} === {before + 2} && {IDLE}", 60)


def check_chat(b, s: Server) -> None:
    b.size(1280, 800)
    b.scheme("light")
    b.open(s.url)
    b.wait("document.querySelector('#total').textContent !== '0'")
    say(b, "the quiet rooms")
    assert last_reply(b)
    say(b, "and the state")
    assert b.run("document.querySelectorAll('#sessions li').length") == 1
    sessions = s.get("/v1/sessions").json["data"]
    assert len(sessions) == 1 and sessions[0]["turns"] == 2, sessions
    b.wait("document.querySelector('#memory-note').textContent.includes('so far')")


def check_reload(b, s: Server) -> None:
    texts = b.run("[...document.querySelectorAll('.message .body')].map(n => n.textContent)")
    b.call("Page.reload")
    b.wait(f"document.readyState === 'complete' && {MESSAGES} === {len(texts)}")
    assert b.run("[...document.querySelectorAll('.message .body')].map(n => n.textContent)") == texts
    before = s.metric("laplace:engine_prompt_tokens_total")
    say(b, "goes on")
    assert s.metric("laplace:engine_prompt_tokens_total") - before < 20, "only the new text is read"
    assert s.get("/v1/sessions").json["data"][0]["turns"] == 3


def check_stop(b, s: Server) -> None:
    b.run("document.querySelector('#tokens').value = 90000; document.querySelector('#input').focus()")
    # No empty line may end it early.
    b.type("time runs on")
    b.press("Enter", 13)
    b.wait("document.querySelector('.message.busy') !== null || " + IDLE)
    b.press("Escape", 27)
    b.wait(IDLE)
    for _ in range(200):
        if s.metric("vllm:num_requests_running") == 0:
            break
        time.sleep(0.05)
    assert s.metric("vllm:num_requests_running") == 0
    say(b, "after the stop")
    assert last_reply(b)


def check_edit(b, s: Server) -> None:
    sessions = len(s.get("/v1/sessions").json["data"])
    b.run("document.querySelector('.message.user .tools button').click()")
    assert b.run("document.querySelector('#input').value") == "the quiet rooms"
    b.run("document.querySelector('#input').value = 'the other rooms'; document.querySelector('#input').focus()")
    b.press("Enter", 13)
    b.wait(f"{MESSAGES} === 2 && {IDLE}")
    assert len(s.get("/v1/sessions").json["data"]) == sessions + 1, "the copy is a session of its own"
    assert b.run("document.querySelectorAll('#sessions li').length") == sessions + 1


def check_fork(b, s: Server) -> None:
    sessions = len(s.get("/v1/sessions").json["data"])
    before = b.run("location.hash")
    b.run("document.querySelector('#fork').click()")
    b.wait(f"location.hash !== '{before}'")
    say(b, "in the fork")
    assert b.run(MESSAGES) == 4
    b.run("[...document.querySelectorAll('#sessions .open')].find(n => !n.textContent.includes('fork')).click()")
    b.wait(f"{MESSAGES} === 2")
    assert len(s.get("/v1/sessions").json["data"]) == sessions + 1


def check_keys_and_delete(b, s: Server) -> None:
    b.press("n", 78, modifiers=1)  # Alt
    b.wait(f"{MESSAGES} === 0")
    say(b, "a short one", 4)
    b.press("ArrowUp", 38)
    b.wait("document.querySelector('#input').value === 'a short one'")
    b.run("document.querySelector('#note button').click()")
    count = b.run("document.querySelectorAll('#sessions li').length")
    b.run("document.querySelector('#sessions li[aria-current=true] .drop').click()")
    b.wait(f"document.querySelectorAll('#sessions li').length === {count - 1}")
    # Everything that can be pressed has a name.
    assert b.run("[...document.querySelectorAll('button')].every(n => n.textContent.trim() || n.ariaLabel)")


def check_partial(b, s: Server) -> None:
    """A session whose text is not in this browser goes on from its state."""
    assert s.chat("said elsewhere", session="elsewhere", max_tokens=4).status == 200
    b.open(s.url + "/#elsewhere")
    b.call("Page.reload")
    b.wait("document.querySelector('p.hello') !== null")
    say(b, "and now here")
    assert s.get("/v1/sessions/elsewhere").json["turns"] == 2


def check_phone(b, s: Server) -> None:
    b.size(390, 844, True)
    b.wait("getComputedStyle(document.querySelector('#show-sessions')).display !== 'none'")
    assert b.run("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    b.wait("getComputedStyle(document.querySelector('#sessions-panel')).visibility === 'hidden'")
    b.run("document.querySelector('#show-sessions').click()")
    b.wait("getComputedStyle(document.querySelector('#sessions-panel')).visibility === 'visible'")
    b.press("Escape", 27)
    b.run("document.querySelector('#show-live').click()")
    b.wait("getComputedStyle(document.querySelector('#live-panel')).visibility === 'visible'")
    b.press("Escape", 27)


def check_policy(b, s: Server) -> None:
    reply = s.get("/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    page = reply.body.decode()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    b.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.evil = 1'}))")
    assert b.run("window.evil") is None, "a script that was put in runs"
    b.problems[:] = [p for p in b.problems if "Content Security Policy" not in p and "script-src" not in p]


def pictures(b, s: Server, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    b.open(s.url)
    b.run("localStorage.clear()")
    for session in s.get("/v1/sessions").json["data"]:
        s.request("DELETE", f"/v1/sessions/{session['id']}")
    b.size(1280, 800)
    b.open(s.url + "/#tour")
    b.call("Page.reload")
    b.wait("document.querySelector('#total').textContent !== '0'")
    for text in ("Language", "State", "Memory"):
        say(b, text, 60)
    b.run("document.querySelector('#fork').click()")
    b.wait("location.hash !== '#tour'")
    say(b, "Time", 60)
    time.sleep(4)
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        b.size(1280, 800)
        time.sleep(0.5)
        b.screenshot(folder / f"page-desktop-{scheme}.png")
        b.size(390, 844, True)
        time.sleep(0.5)
        b.screenshot(folder / f"page-phone-{scheme}.png")


def main() -> None:
    found = browser.find()
    if found is None:
        print("NOT RUN: the page's test needs chromium", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program, "--slots", 8) as s, browser.Browser(found) as b:
            run_checks((check_chat, check_reload, check_stop, check_edit, check_fork, check_keys_and_delete, check_partial,
                        check_phone, check_policy), b, s)
            assert b.problems == [], b.problems
        if len(sys.argv) > 2:
            model = sys.argv[3] if len(sys.argv) > 3 else "run"
            with Server(program, "--slots", 20, state="pictures", model=model) as s, browser.Browser(found) as b:
                pictures(b, s, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
