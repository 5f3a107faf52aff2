"""A headless Chromium over its debugging pipe: no driver, no package."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time


def find() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    """A page, or several. Collects what its console says and what a policy refuses."""

    def __init__(self, program: str):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.out = os.pipe()
        self.input, from_browser = os.pipe()
        # The pipe's ends must be descriptors 3 and 4 of the browser.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "--no-first-run", "--disable-dev-shm-usage",
             "--disable-background-networking", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.answers, self.problems, self.number = {}, [], 0
        self.arrived = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        self.tab()

    session = None

    def tab(self) -> None:
        """Opens another page; what follows goes to it. `session` set to what it was goes back."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        self.profile.cleanup()

    def read(self) -> None:
        rest = b""
        while piece := os.read(self.input, 1 << 20):
            *messages, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, messages):
                self.take(message)

    def take(self, message: dict) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f'{params["entry"]["text"]} {params["entry"].get("url", "")}')
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(str(params["args"]))
        if method == "Page.javascriptDialogOpening":
            threading.Thread(target=lambda: self.call("Page.handleJavaScriptDialog", accept=True), daemon=True).start()
        with self.arrived:
            if "id" in message:
                self.answers[message["id"]] = message
            self.arrived.notify_all()

    def call(self, method: str, **params) -> dict:
        with self.arrived:
            self.number += 1
            number = self.number
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        with self.arrived:
            assert self.arrived.wait_for(lambda: number in self.answers, 60), f"no answer to {method}"
            answer = self.answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> None:
        """Until it holds; a page that is still loading may lack what it looks at."""
        end = time.monotonic() + seconds
        script = f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"
        while not self.run(script):
            assert time.monotonic() < end, f"waited {seconds} s in vain for {script}; {self.problems}"
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                      **(text if kind == "keyDown" else {}))

    def screenshot(self, path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
