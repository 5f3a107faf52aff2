"""The page in headless Chromium: chat, stop, edit, fork, reload, phone width, keys, other tabs and clients, a full or broken
storage, sessions that cannot be read; no console errors.

    python page_test.py PROGRAM [DIRECTORY_FOR_SCREENSHOTS [MODEL]]
"""

import pathlib
import sys
import tempfile
import time

import browser
from server import Server, make_model, run_checks, session_file, wait_for

MESSAGES = "document.querySelectorAll('.message').length"
IDLE = "document.querySelector('#send').textContent === 'Send'"
ROWS = "[...document.querySelectorAll('#sessions li b')].map(n => n.textContent)"
NOTE = "document.querySelector('#note').textContent"


def last_reply(b) -> str:
    return b.run("[...document.querySelectorAll('.message.assistant .body')].at(-1)?.textContent || ''")


def say(b, text: str, tokens: int = 24) -> None:
    b.run(f"document.querySelector('#tokens').value = {tokens}; document.querySelector('#input').focus()")
    b.type(text)
    before = b.run(MESSAGES)
    b.press("Enter", 13)
    b.wait(f"{MESSAGES} === {before + 2} && {IDLE}", 60)


def reopen(b, s: Server, name: str = "") -> None:
    """The page anew, not only another hash of it."""
    b.open("about:blank")
    b.open(f"{s.url}/#{name}" if name else s.url)
    b.wait("document.querySelector('#total').textContent !== '0'")
    b.wait(f"document.querySelector('#log').children.length || {NOTE}")
    if not name:  # one where nothing was said yet: the server does not know it
        forgive(b, 404)


def drop(b, title: str) -> None:
    b.run(f"[...document.querySelectorAll('#sessions li')].find(n => n.textContent.includes('{title}')).querySelector('.drop').click()")


def forgive(b, *statuses: int) -> None:
    """The browser's console names every answer that is an error; these were meant."""
    b.problems[:] = [p for p in b.problems if not any(f"status of {status} " in p for status in statuses)]


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


def turns(s: Server, name: str) -> int:
    return s.get(f"/v1/sessions/{name}").json["turns"]


def check_made_elsewhere(b, s: Server) -> None:
    """A session that came after the list, or while there is none, is not begun anew."""
    reopen(b, s)
    for text in ("one", "two", "three"):
        assert s.chat(text, session="longtale", max_tokens=4).status == 200
    b.run("location.hash = 'longtale'")
    b.wait("document.querySelector('p.hello') !== null")
    say(b, "four")
    assert turns(s, "longtale") == 4
    # Opened before it was there.
    reopen(b, s, "latetale")
    b.wait("document.querySelector('div.hello') !== null")
    assert s.chat("one", session="latetale", max_tokens=4).status == 200
    say(b, "two")
    assert turns(s, "latetale") == 2
    forgive(b, 404)


def check_no_answer(b, s: Server) -> None:
    """While the server cannot say what a session is, nothing is sent to it."""
    for text in ("one", "two"):
        assert s.chat(text, session="tale", max_tokens=4).status == 200
    folder = session_file(s, "tale").parent
    aside = folder.with_suffix(".aside")
    folder.rename(aside)
    folder.write_text("no folder")  # so the store fails
    assert s.get("/v1/sessions").status == 503
    reopen(b, s)
    b.run("document.querySelector('#new').click()")
    assert b.run(NOTE), "that there is no list stays to be read"
    reopen(b, s, "tale")
    b.wait(f"{NOTE} !== ''")
    b.run("document.querySelector('#input').focus()")
    b.type("not yet")
    b.press("Enter", 13)
    b.wait(f"document.querySelector('#input').value === 'not yet' && {IDLE}")
    assert b.run(NOTE) and b.run(MESSAGES) == 0
    folder.unlink()
    aside.rename(folder)
    b.run("document.querySelector('#input').value = ''")
    say(b, "three")
    assert turns(s, "tale") == 3
    b.wait(f"{NOTE} === ''")
    forgive(b, 503)


def check_tabs(b, s: Server) -> None:
    """Each tab shows what was said and deleted in the other, and keeps it."""
    reopen(b, s)
    first = b.session
    b.tab()
    second = b.session
    reopen(b, s)
    for session, text in ((second, "said in the second"), (first, "said in the first")):
        b.session = session
        b.run("document.querySelector('#new').click()")
        say(b, text)
    b.session = second
    b.wait(f"{ROWS}.includes('said in the first')")
    drop(b, "said in the first")
    b.session = first
    b.wait(f"!{ROWS}.includes('said in the first') && {MESSAGES} === 0")
    reopen(b, s)
    b.wait(f"{ROWS}.includes('said in the second') && !{ROWS}.includes('said in the first')")
    b.run("[...document.querySelectorAll('#sessions .open')].find(n => n.textContent.includes('said in the second')).click()")
    b.wait(f"{MESSAGES} === 2")
    b.session = second
    b.call("Page.close")
    b.session = first
    forgive(b, 404)


def check_old_texts(b, s: Server) -> None:
    """Texts of the time when one key held them all are taken over; what cannot be read is left."""
    reopen(b, s)
    b.run("""localStorage.setItem('laplace', JSON.stringify({former: {title: 'of old', messages: [
        {role: 'user', content: 'a'}, {role: 'assistant', content: 'b'}], known: 2, updated: 1}}));
        localStorage.setItem('laplace:cut', '{"title": "cut');""")
    reopen(b, s, "former")
    b.wait(f"{MESSAGES} === 2")
    assert b.run("localStorage.getItem('laplace') === null && localStorage.getItem('laplace:former') !== null")
    drop(b, "of old")
    b.wait(f"{MESSAGES} === 0")
    b.run("localStorage.setItem('laplace', '{\"c-1\": {\"title\": \"cut')")
    reopen(b, s)
    say(b, "with broken texts", 4)
    b.run("localStorage.removeItem('laplace'); localStorage.removeItem('laplace:cut')")
    forgive(b, 404)


def check_full_storage(b, s: Server) -> None:
    reopen(b, s)
    b.run("document.querySelector('#new').click()")
    say(b, "while there is room", 4)
    b.run("""(() => {
        for (let size = 1 << 20; size; size >>= 1)
          try { for (let i = 0;; ++i) localStorage.setItem(`filler-${size}-${i}`, 'x'.repeat(size)); } catch {}
    })()""")
    say(b, "no more room", 4)
    assert "storage is full" in b.run(NOTE)
    say(b, "and on", 4)
    assert turns(s, b.run("location.hash.slice(1)")) == 3
    b.run("for (const key of Object.keys(localStorage)) if (key.startsWith('filler')) localStorage.removeItem(key)")
    say(b, "room again", 4)
    assert b.run(NOTE) == "" and b.run("localStorage.getItem('laplace:' + location.hash.slice(1)).includes('no more room')")


def check_names(b, s: Server) -> None:
    """Sessions that are called as what every object of the language has."""
    for name in ("constructor", "__proto__", "toString"):
        reopen(b, s, name)
        b.wait("document.querySelector('div.hello') !== null")
        say(b, "hello", 4)
        assert turns(s, name) == 1
        reopen(b, s)
        b.wait(f"location.hash === '#{name}' && {MESSAGES} === 2")
        say(b, "again", 4)
        assert turns(s, name) == 2
    forgive(b, 404)


def check_damaged(b, s: Server) -> None:
    """What cannot be read can be deleted."""
    assert s.chat("whole yet", session="damaged", max_tokens=4).status == 200
    file = session_file(s, "damaged")
    file.write_bytes(b"not a state")
    reopen(b, s)
    b.wait(f"{ROWS}.includes('damaged')")
    drop(b, "damaged")
    b.wait(f"!{ROWS}.includes('damaged')")
    assert not file.exists()


def check_delete_running(b, s: Server) -> None:
    reopen(b, s)
    for text in ("deleted at its second reply", "deleted at its first reply"):
        b.run("document.querySelector('#new').click()")
        if "second" in text:
            say(b, text, 4)
        name = b.run("location.hash.slice(1)")
        b.run("document.querySelector('#tokens').value = 90000; document.querySelector('#input').focus()")
        b.type(text)
        b.press("Enter", 13)
        b.wait("document.querySelector('.message.busy .body').textContent !== ''")
        drop(b, text)
        b.wait(f"!{ROWS}.includes('{text}') && location.hash !== '#{name}'")
        assert b.run(NOTE) == ""
        wait_for(lambda: s.metric("vllm:num_requests_running") == 0)
        assert s.get(f"/v1/sessions/{name}").status == 404
    forgive(b, 404, 409)


def check_many_sessions(b, s: Server) -> None:
    assert s.chat("one of many", session="seed", max_tokens=4).status == 200
    seed = session_file(s, "seed").read_bytes()
    names = [f"copy-{i}" for i in range(220)]
    for name in names:
        session_file(s, name).write_bytes(seed)
    reopen(b, s)
    b.wait(f"{ROWS}.length === 200")
    b.run("document.querySelector('#sessions li:last-child button').click()")
    assert b.run(f"{ROWS}.length") > 220
    for name in names:
        session_file(s, name).unlink()


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
                        check_made_elsewhere, check_no_answer, check_tabs, check_old_texts, check_full_storage, check_names,
                        check_damaged, check_delete_running, check_many_sessions, check_phone, check_policy), b, s)
            assert b.problems == [], b.problems
        if len(sys.argv) > 2:
            model = sys.argv[3] if len(sys.argv) > 3 else "run"
            with Server(program, "--slots", 20, state="pictures", model=model) as s, browser.Browser(found) as b:
                pictures(b, s, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
