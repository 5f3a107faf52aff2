"""The chat as somebody types it in a terminal: editing, what was typed before, long lines, the keys that end things.

    python terminal_test.py PROGRAM
"""

import os
import pty
import re
import select
import signal
import sys
import tempfile
import termios
import time

from program import Program

UP, LEFT, HOME, END, RUBOUT, END_OF_INPUT, INTERRUPT = b"\x1b[A", b"\x1b[D", b"\x01", b"\x05", b"\x7f", b"\x04", b"\x03"


class Terminal:
    """`laplace chat` on a pseudo-terminal of its own."""

    def __init__(self, program: Program, *flags, **env):
        flags = flags or ("--reply-tokens", 3)
        self.child, self.master = pty.fork()
        if self.child == 0:
            os.chdir(program.dir)
            command = program.command("chat", "--model", "run", "--state-dir", "states", "--seed", 3, *flags)
            os.execve(command[0], command, {k: v for k, v in os.environ.items() if k != "LC_ALL"} | {"TERM": "xterm"} | env)
        self.seen = b""
        self.prompt(rb"> $")

    def read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            got = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            got = b""
        self.seen += got
        return bool(got)

    def expect(self, pattern: bytes, seconds: float = 60) -> bytes:
        """What came up to `pattern`."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, (pattern, self.seen[-500:])
            self.read(1)
        text, self.seen = self.seen[: found.end()], self.seen[found.end():]
        return text

    def prompt(self, pattern: bytes = rb"\n> $") -> bytes:
        """What came before the next prompt; from then on keys are the program's, not the kernel's line editing's."""
        text = self.expect(pattern)
        while termios.tcgetattr(self.master)[3] & termios.ICANON:
            time.sleep(0.01)
        return text

    def type(self, keys: bytes) -> None:
        while keys:
            keys = keys[os.write(self.master, keys[:512]):]
            self.read(0.01)

    def line(self, keys: bytes) -> bytes:
        self.type(keys + b"\r")
        return self.prompt()

    def ended(self, seconds: float = 30) -> int:
        """The exit code, minus the signal."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.1)
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid != 0:
                os.close(self.master)
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it still runs: {self.seen[-500:]}")


def position(terminal: Terminal, name: bytes) -> int:
    """Tokens of the conversation so far."""
    terminal.line(b"/save " + name)
    text = terminal.line(b"/load " + name)
    return int(re.search(rb"conversation of ([\d,]+) tokens", text)[1].replace(b",", b""))


def check_long_lines(program: Program) -> None:
    """As many tokens as through a pipe, far beyond what the kernel's line editing lets through."""
    text = b"the state of a model keeps its size " * 400
    terminal = Terminal(program)
    terminal.line(text.strip())
    typed = position(terminal, b"typed")
    terminal.type(END_OF_INPUT)
    assert terminal.ended() == 0
    done = program.run("chat", "--model", "run", "--state-dir", "states", "--seed", 3, "--reply-tokens", 3,
                       stdin=text.strip() + b"\n/save piped\n/load piped\n")
    piped = int(re.search(rb"conversation of ([\d,]+) tokens", done.stderr)[1].replace(b",", b""))
    assert typed == piped > 2000, (typed, piped)


def check_editing(program: Program) -> None:
    terminal = Terminal(program)
    terminal.type(b"/foxx" + RUBOUT * 2 + b"rk")
    assert b"kept a copy" in terminal.line(b"")
    assert b"kept a copy" in terminal.line(UP), "what was typed before does not come back"
    assert b"returned to the copy" in terminal.line(b"bak" + HOME + b"/" + END + LEFT + b"c")
    terminal.type(b"/quit\r")
    assert terminal.ended() == 0


def check_characters(program: Program) -> None:
    """What is typed is UTF-8, in any locale."""
    for env in ({"LANG": "C.UTF-8"}, {"LANG": "C"}, {"LANG": ""}):
        terminal = Terminal(program, **env)
        said = "ü 漢字 🙂 é".encode()
        terminal.line(said)
        typed = position(terminal, b"typed")
        terminal.type(END_OF_INPUT)
        assert terminal.ended() == 0
        done = program.run("chat", "--model", "run", "--state-dir", "states", "--seed", 3, "--reply-tokens", 3,
                           stdin=said + b"\n/save piped\n/load piped\n")
        assert b"conversation of %d tokens" % typed in done.stderr, (env, typed, done.stderr)


def check_interrupts(program: Program) -> None:
    """Ctrl-C ends a reply early, and at the prompt the program; the terminal is as it was."""
    terminal = Terminal(program, "--reply-tokens", 10**6, "--stop", "no such text")
    terminal.type(b"the state\r")
    terminal.expect(rb"the state\r?\n..")
    terminal.type(INTERRUPT)
    terminal.prompt()
    terminal.type(b"half a line" + INTERRUPT)
    assert terminal.ended() in (-signal.SIGINT, 128 + signal.SIGINT)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Program(sys.argv[1], directory)
        program.prepare()
        program.run(*program.train_flags("run", steps=3))
        for check in (check_long_lines, check_editing, check_characters, check_interrupts):
            check(program)
            print(check.__name__, "passed")


if __name__ == "__main__":
    main()
