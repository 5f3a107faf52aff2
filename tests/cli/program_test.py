"""The program from end to end: the published numbers, training, stopping, both forms of the model.

    python program_test.py PROGRAM SOURCE_DIRECTORY
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from program import Program


def check_published_numbers(program: Program, source: pathlib.Path) -> None:
    text = program.run("inspect", "--config", source / "configs" / "laplace-3b.json").stdout.decode()
    for number in ("96 Muon matrices", "2,717,908,992 + 309.57 M", "29,491,200", "81.92 ×"):
        assert number in text, f"{number} is not in:\n{text}"


def check_training_and_stopping(program: Program) -> None:
    done = program.run(*program.train_flags("run", steps=40), "--json")
    result = json.loads(done.stdout)
    assert result["steps"] == 40 and result["val_bits_per_byte"] > 0
    recipe = (program.dir / "run" / "recipe.toml").read_text()
    assert "steps = 40" in recipe and 'config = "config.json"' in recipe
    # The saved recipe is a recipe: the same run again, elsewhere.
    program.run("train", "--recipe", "run/recipe.toml", "--out", "again")
    assert program.losses("run") == program.losses("again")

    for number in (signal.SIGTERM, signal.SIGINT):
        name = f"stopped-{number.name}"
        child = program.start(*program.train_flags(name, steps=100000, checkpoint_every=0))
        log = program.dir / name / "log.jsonl"
        while not log.exists() or log.read_text().count("\n") < 3:
            time.sleep(0.05)
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert b"stopped after step" in out and b"--resume" in err
        steps = len(program.losses(name))
        assert (program.dir / name / "checkpoints" / f"step-{steps:08d}").is_dir()


def check_signals_that_come_twice(program: Program) -> None:
    """`timeout` signals a process and then its group, that is, the process again."""
    command = program.command("generate", "--model", "run", "--max-tokens", 10**7, "--ignore-eos", "--json")
    done = subprocess.run(["timeout", "2", *command], cwd=program.dir, capture_output=True)
    assert json.loads(done.stdout)["finish_reason"] == "interrupted", done.stderr


def check_half_a_checkpoint(program: Program) -> None:
    for name in ("step-00000040", ".step-00000040.tmp"):
        half = program.dir / "half" / name
        shutil.copytree(program.dir / "run" / "checkpoints" / "step-00000040", half)
        (half / "manifest.json").unlink()
        program.refuse("generate", "--model", half, "--max-tokens", 1, says="manifest.json")
    shutil.move(half, program.dir / "exported")  # under a name of its own it is a model like any other
    program.run("generate", "--model", "exported", "--max-tokens", 1)


def check_forms(program: Program) -> None:
    scores = {}
    for form in ("chunked", "recurrent"):
        done = program.run("eval", "score", "--model", "run", "--form", form, "--dtype", "float32", "--json",
                           "-", stdin=b"the state of a model keeps its size " * 20)
        scores[form] = json.loads(done.stdout)["logprobs"]
    a, b = scores["chunked"], scores["recurrent"]
    assert len(a) == len(b) > 100
    assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4


def check_generate(program: Program) -> None:
    flags = ["generate", "--model", "run", "--prompt", "the state", "--max-tokens", 40]
    greedy = program.run(*flags, "--temperature", 0).stdout
    assert greedy == program.run(*flags, "--temperature", 0).stdout and greedy
    assert (program.run(*flags, "--seed", 1).stdout == program.run(*flags, "--seed", 1).stdout
            != program.run(*flags, "--seed", 2).stdout)


def check_dtypes_and_devices(program: Program) -> None:
    """int8 is near float32, and the path of other devices gives what the CPU's gives."""
    text = b"the state of a model keeps its size while texts grow " * 8
    bits = {}
    for flags in (("float32", "cpu"), ("bfloat16", "cpu"), ("int8", "cpu"), ("float32", "torch:cpu")):
        done = program.run("eval", "score", "--model", "run", "--form", "recurrent", "--dtype", flags[0],
                           "--device", flags[1], "--json", "-", stdin=text)
        bits[flags] = json.loads(done.stdout)["bits_per_byte"]
    exact = bits["float32", "cpu"]
    assert abs(bits["float32", "torch:cpu"] / exact - 1) < 1e-4, bits
    assert abs(bits["bfloat16", "cpu"] / exact - 1) < 0.01, bits
    assert abs(bits["int8", "cpu"] / exact - 1) < 0.02, bits
    program.refuse("eval", "score", "--model", "run", "--dtype", "int8", "text.txt", says="recurrent")
    program.refuse("generate", "--model", "run", "--prompt", "x", "--dtype", "int3", says="int8")


def check_bench(program: Program) -> None:
    done = program.run("bench", "decode", "--config", "config.json", "--batch", 2, "--output", 8, "--json")
    result = json.loads(done.stdout)
    assert result["tokens_per_second"] > 0 and result["limits"]["read_bandwidth"] > 0, result
    done = program.run("bench", "serve", "--config", "config.json", "--requests", 5, "--rate", 50,
                       "--output", 8, "--slots", 2, "--json")
    assert json.loads(done.stdout)["output_tokens_per_second"] > 0


def check_chat(program: Program) -> None:
    script = b"hello there\n/save one\n/fork\n/reset\n/load one\n/quit\n"
    done = program.run("chat", "--model", "run", "--state-dir", "states", "--seed", 3, stdin=script)
    assert done.returncode == 0
    assert list((program.dir / "states").iterdir())
    # Another try after /back is another reply, unless a seed was given.
    tries = b"hello there\n/fork\ngo on\n/back\ngo on\n/back\ngo on\n"
    for seed, different in (((), True), (("--seed", 3), False)):
        flags = ("chat", "--model", "run", "--stop", "\n", "--reply-tokens", 30, "--temperature", 1.5, *seed)
        replies = program.run(*flags, stdin=tries).stdout.split(b"\n")[1:4]
        assert (len(set(replies)) > 1) == different, replies
    # A script learns that a line of it failed; the lines behind it are carried out.
    done = program.run("chat", "--model", "run", "--state-dir", "text.txt/x", "--seed", 3, check=False,
                       stdin=b"hello\n/save one\n/quit now\n/save two words\nhello\n")
    assert done.returncode == 2 and b"3 of the lines" in done.stderr and done.stdout.count(b"\n") >= 2, done.stderr


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Program(sys.argv[1], directory)
        program.prepare()
        check_published_numbers(program, pathlib.Path(sys.argv[2]))
        for check in (check_training_and_stopping, check_signals_that_come_twice, check_half_a_checkpoint, check_forms,
                      check_generate, check_dtypes_and_devices, check_bench, check_chat):
            check(program)
            print(check.__name__, "passed")


if __name__ == "__main__":
    main()
