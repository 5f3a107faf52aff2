"""Where and how the program is started: descriptors, directories, paths, surroundings; recipes and texts of other systems.

    python surroundings_test.py PROGRAM
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile

from program import Program

GENERATE = ("generate", "--model", "run", "--prompt", "the", "--max-tokens", 5, "--threads", 1, "--seed", 3)
QUICK = {"seq-length": 32, "batch": 4, "val-every": 0, "threads": 1, "dtype": "float32"}


def shell(program: Program, command: str, code: int = 0, **options) -> subprocess.CompletedProcess:
    """`command` with $L for the program."""
    done = subprocess.run(["bash", "-c", command], cwd=options.pop("cwd", program.dir), capture_output=True, timeout=120,
                          env=os.environ | {"L": program.path} | options.pop("env", {}), **options)
    assert done.returncode == code, f"{command}: {done.returncode}, {done.stderr.decode()}"
    return done


def check_outputs(program: Program) -> None:
    """Results that could not be written are no success; a closed descriptor is nobody else's."""
    for verb in ("data info data", "inspect run", "--help", "generate --model run --prompt x --max-tokens 2",
                 "tokenizer encode --tokenizer tokenizer text.txt", "eval score --model run config.json"):
        done = shell(program, f"$L {verb} > /dev/full", code=1)
        assert b"cannot write to standard output" in done.stderr, (verb, done.stderr)
    whole = program.run(*program.train_flags("open", steps=3)).stdout
    flags = " ".join(program.train_flags("closed", steps=3))
    assert whole and not shell(program, f"$L {flags} <&- >&- 2>&-").stdout
    assert program.losses("closed") == program.losses("open"), "what was printed has landed in a file"
    shell(program, "$L data prepare --tokenizer tokenizer --input text.txt --out d-closed --val-last-bytes 5000 >&- 2>&-")
    for name in ("train_000000.bin", "val_000000.bin", "dataset.json"):
        assert (program.dir / "d-closed" / name).read_bytes() == (program.dir / "data" / name).read_bytes(), name
    assert shell(program, "$L tokenizer encode --tokenizer tokenizer - <&-").stdout == b"\n"


def check_broken_pipes(program: Program) -> None:
    """Training goes on when nobody reads its lines any more: they cost no checkpoint."""
    flags = " ".join(program.train_flags("piped", steps=40))
    shell(program, f"set -o pipefail; $L {flags} 2>&1 | head -n 1", code=1)  # its result was not written
    assert program.losses("piped") and (program.dir / "piped" / "checkpoints" / "step-00000040").is_dir()


def check_empty_values(program: Program) -> None:
    """A shell's variable that is not set is no number."""
    for flag in ("clip", "weight-decay", "steps"):
        program.refuse(*program.train_flags("unset"), f"--{flag}", "", says=f"--{flag}")
    for flag in ("clip", "nesterov", "val-carry"):
        program.refuse(*program.train_flags("unset"), f"--{flag}=", "--lr=1e-3", says=f"--{flag}")
    program.refuse("generate", "--model", "run", "--max-tokens", "9" * 20, says="--max-tokens")
    shown = json.loads(program.run("generate", "--model", "run", "--prompt=", "--json", "--max-tokens", 1).stdout)
    assert shown["prompt_tokens"] == 1 and shown["tokens_per_second"] is None, shown
    (program.dir / "empty.toml").write_text('schedule = ""\nsteps = 2\n')
    program.refuse("train", "--recipe", "empty.toml", "--config", "config.json", "--data", "data", "--out", "unset",
                   says="schedule")
    assert not (program.dir / "unset").exists()


def check_flags(program: Program) -> None:
    """A flag alone turns on; its value goes into the recipe of the run."""
    for number, (flags, lines) in enumerate((
        (["--per-block", "--val-carry"], ("per-block = true", "val-carry = true", "nesterov = true")),
        (["--per-block=true", "--nesterov=false"], ("per-block = true", "val-carry = false", "nesterov = false")),
        (["--nesterov"], ("per-block = false", "nesterov = true")),
    )):
        program.run(*program.train_flags(f"flags{number}", steps=1), *flags)
        recipe = (program.dir / f"flags{number}" / "recipe.toml").read_text()
        assert all(f"\n{line}\n" in recipe for line in lines), recipe


def check_places(program: Program) -> None:
    text = program.run(*GENERATE).stdout
    for env in ({"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}, {"LC_ALL": "nonsense"}, {"TERM": "dumb", "COLUMNS": "1"}):
        done = subprocess.run([program.path, *map(str, GENERATE), "--temperature", "0.8"], cwd=program.dir,
                              capture_output=True, env=os.environ | env)
        assert done.returncode == 0 and done.stdout == text, (env, done.stderr)
    bare = subprocess.run([program.path, *map(str, GENERATE)], cwd=program.dir, capture_output=True, env={})
    assert bare.returncode == 0 and bare.stdout == text, bare.stderr
    (program.dir / "link").symlink_to("run")
    assert program.run("generate", "--model", "link", *GENERATE[3:]).stdout == text
    (program.dir / "file").write_text("")
    program.refuse(*program.train_flags("file/run", steps=2), says="file/run", code=1)
    program.refuse("generate", "--model", "run", "--prompt", "x", "--threads", 100_000, says="--threads")
    program.refuse(*program.train_flags("r", threads=100_000), says="--threads")


def check_overwriting(program: Program) -> None:
    """Directories and files that are nobody's but the user's stay what they are."""
    corpus = program.dir / "corpus.tmp"
    corpus.mkdir()
    shutil.copy(program.dir / "text.txt", corpus / "text.txt")
    prepare = ("data", "prepare", "--tokenizer", "tokenizer", "--val-last-bytes", 5000)
    program.run(*prepare, "--input", "corpus.tmp", "--out", "corpus")
    assert (corpus / "text.txt").exists() and (program.dir / "corpus" / "dataset.json").exists()
    other = program.dir / "other"
    program.run("tokenizer", "train", "--input", "text.txt", "--vocab-size", 280, "--out", "other")
    before = (other / "tokenizer.json").read_bytes()
    program.refuse(*prepare, "--input", "text.txt", "--out", "other", says="another tokenizer")
    assert (other / "tokenizer.json").read_bytes() == before
    (program.dir / "linked").mkdir()
    (program.dir / "linked" / "more").symlink_to(corpus)
    shutil.copy(program.dir / "text.txt", program.dir / "linked" / "a.txt")
    done = program.run(*prepare, "--input", "linked", "--out", "from-links")
    assert b"linked/more, a link to a directory" in done.stderr, done.stderr


def check_data(program: Program) -> None:
    """A vocabulary that is too small, and other data, are refused at the start."""
    small = json.loads((program.dir / "config.json").read_text()) | {"vocab_size": 299, "bos_token_id": 298, "eos_token_id": 298}
    (program.dir / "small.json").write_text(json.dumps(small))
    program.refuse(*program.train_flags("small", config="small.json"), says="vocab_size 299")
    assert not (program.dir / "small").exists()
    lines = (program.dir / "text.txt").read_text().split("\n")
    (program.dir / "a.txt").write_text("\n".join(lines[:2000]))
    (program.dir / "b.txt").write_text("\n".join(lines[2000:]))
    for name, order in (("ab", ("a.txt", "b.txt")), ("ba", ("b.txt", "a.txt"))):
        program.run("data", "prepare", "--tokenizer", "tokenizer", "--input", *order, "--out", name, "--val-fraction", 0)
    program.run(*program.train_flags("on-ab", data="ab", steps=2))
    program.refuse(*program.train_flags("on-ab", data="ba", steps=3), "--resume", says="other data")
    program.run(*program.train_flags("on-ab", data="ab", steps=3), "--resume")
    (program.dir / "minutes.toml").write_text('minutes = 1\nconfig = "config.json"\n')
    program.run("train", "--recipe", "minutes.toml", "--data", "ab", "--out", "by-steps", "--steps", 2, "--seq-length", 32,
                "--batch", 4, "--threads", 1)


def check_paths(program: Program) -> None:
    """A run's own recipe opens what its flags did, whatever is in the names."""
    for name in ('q"uote', "back\\slash", "ha #sh", "com,ma", "eq=ual", " space ", "ü ñ 漢", "007", "1e5", "true",
                 "'single'", "{x}", "a\tb", "-dash", "x;y"):
        shutil.copytree(program.dir / "data", program.dir / name)
        out = f"{name}-run"
        program.run(*program.train_flags(out, steps=2, data=name, checkpoint_every=1))
        program.run("train", "--recipe", f"./{out}/recipe.toml", "--resume", "--steps", 3)
        assert len(program.losses(out)) == 3, name
    name = 'ü "x" #,='
    program.run("data", "prepare", "--tokenizer", "007", "--input", "text.txt", "--out", name)
    assert program.run("data", "info", name).stdout
    shutil.copytree(program.dir / "run", program.dir / f"{name}-model")
    assert program.run("generate", "--model", f"{name}-model", *GENERATE[3:]).stdout


def check_recipes(program: Program) -> None:
    recipe = program.dir / "recipe.toml"
    rest = "".join(f"{k} = {json.dumps(v)}\n" for k, v in QUICK.items() if k != "seq-length")

    def with_lines(lines: str) -> None:
        recipe.write_bytes(lines.encode() + rest.encode())

    with_lines("\ufeff# a comment\r\n\r\nconfig = 'config.json'  # another\r\n data=\"d\\u0061ta\"\r\n"
               "\"seq-length\" = 3_2\r\nlr = +1e-3\r\nsteps=2#x\r\nnesterov = false\r\n")
    program.run("train", "--recipe", "recipe.toml", "--out", "taken")
    got = (program.dir / "taken" / "recipe.toml").read_text()
    for line in ('config = "config.json"', 'data = "data"', "seq-length = 32", "nesterov = false"):
        assert f"\n{line}\n" in got, (line, got)
    for lines, says in (
        ("steps = 2\nsteps = 3\n", "line 2"), ("steps = [2]\n", "line 1"), ("[train]\n", "no sections"),
        ("\n[[train]]\n", "line 2"), ("schedule = wsd\n", "line 1"), ("schedule = \"wsd\n", "line 1"),
        ("nesterov\n", "line 1"), ("\nsteps =\n", "line 2"), ("steps = 2 3\n", "line 1"), ("= 2\n", "line 1"),
        ("config = \"C:\\qwerty\"\n", "escape"), ("config = \"\\ud800\"\n", "line 1"), ("a.b = 1\n", "line 1"),
        ("steps = 1x\n", "line 1"), ("steps = 2.5\n", "steps"), ("steps = { x = 1 }\n", "no lists"),
        ("stepz = 1\n", "did you mean \"steps\""), ("config = \"\\\n", "line 1"), ("steps = 2026-11-30\n", "is a date"),
    ):
        with_lines(lines)
        program.refuse("train", "--recipe", "recipe.toml", "--data", "data", "--out", "refused", says=says)
    assert not (program.dir / "refused").exists()


def check_texts(program: Program) -> None:
    """The tokenizer learns from the same texts as `data prepare` takes: not from how they are packed."""
    text = (program.dir / "text.txt").read_text()
    lines = [json.dumps({"text": line, "score": 1.5}) + "\n" for line in text.splitlines(keepends=True)]
    (program.dir / "packed.txt.gz").write_bytes(gzip.compress(text.encode()))
    (program.dir / "marked.txt").write_text("\ufeff" + text)
    (program.dir / "lines.jsonl").write_text("\ufeff" + "".join(lines))
    (program.dir / "texts").mkdir()
    (program.dir / "texts" / "a.md").write_text(text)
    (program.dir / "texts" / "b.png").write_bytes(os.urandom(9999))

    def trained(*inputs) -> str:
        out = f"tok-{inputs[0]}"
        program.run("tokenizer", "train", "--input", *inputs, "--vocab-size", 300, "--out", out)
        return (program.dir / out / "tokenizer.json").read_text()

    expected = trained("text.txt")
    for name in ("packed.txt.gz", "marked.txt", "texts"):
        assert trained(name) == expected, name
    # A line ends a document, so that no piece goes over it.
    (program.dir / "cut").mkdir()
    for i, line in enumerate(text.splitlines(keepends=True)[:300]):
        (program.dir / "cut" / f"{i:05}.txt").write_text(line)
    (program.dir / "some.jsonl").write_text("".join(lines[:300]))
    assert trained("some.jsonl") == trained("cut")
    (program.dir / "utf16.txt").write_bytes(text.encode("utf-16"))
    (program.dir / "packed.txt.xz").write_bytes(b"\xfd7zXZ\0\0\4" + os.urandom(500))
    for verb in (("tokenizer", "train", "--vocab-size", 300, "--out", "no-tok"),
                 ("data", "prepare", "--tokenizer", "tokenizer", "--out", "no-data")):
        program.refuse(*verb, "--input", "utf16.txt", says="utf16.txt is UTF-16")
        program.refuse(*verb, "--input", "packed.txt.xz", says="packed.txt.xz has zero bytes")
        program.refuse(*verb, "--input", "lines.jsonl", "--column", "score", says="line 1")
    assert not (program.dir / "no-tok").exists() and not (program.dir / "no-data").exists()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Program(sys.argv[1], directory)
        program.prepare()
        program.run(*program.train_flags("run", steps=3))
        for check in (check_outputs, check_broken_pipes, check_empty_values, check_flags, check_places,
                      check_overwriting, check_data, check_paths, check_recipes, check_texts):
            check(program)
            print(check.__name__, "passed")


if __name__ == "__main__":
    main()
