"""What the tests of the built program share: running it, a small data set and model, checks."""

import json
import os
import pathlib
import random
import subprocess

CONFIG = {
    "model_type": "laplace", "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2,
    "num_heads": 4, "head_k_dim": 8, "head_v_dim": 8, "intermediate_size": 48, "conv_kernel": 4,
    "chunk_size": 16, "half_life_min": 1.0, "half_life_max": 64.0, "num_norm_tiers": 2,
    "bos_token_id": 511, "eos_token_id": 511, "torch_dtype": "float32",
}
WORDS = "the state of a model keeps its size while texts grow and time runs on through quiet rooms".split()


class Program:
    """The `laplace` program with a directory to work in. LAPLACE_SERVE_PROGRAM takes its place for `serve`: the same
    built with sanitizers."""

    def __init__(self, path: str, directory: str):
        self.path = str(pathlib.Path(path).resolve())
        self.dir = pathlib.Path(directory)

    def command(self, *args) -> list[str]:
        path = os.environ.get("LAPLACE_SERVE_PROGRAM", self.path) if args[:1] == ("serve",) else self.path
        return [path, *map(str, args)]

    def start(self, *args, **options) -> subprocess.Popen:
        return subprocess.Popen(self.command(*args), cwd=self.dir, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def run(self, *args, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess:
        done = subprocess.run(self.command(*args), cwd=self.dir, input=stdin,
                              capture_output=True, timeout=300)
        if check and done.returncode != 0:
            raise AssertionError(f"{args} ended with {done.returncode}: {done.stderr.decode()}")
        return done

    def refuse(self, *args, says: str, code: int = 2, stdin: bytes = b"") -> None:
        """The call ends with `code` and one sentence on stderr that contains `says`."""
        done = self.run(*args, stdin=stdin, check=False)
        text = done.stderr.decode(errors="replace")
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        assert done.returncode == code, f"{args}: exit {done.returncode}, not {code}: {text}"
        assert len(errors) == 1, f"{args}: not one sentence: {text}"
        assert says.lower() in errors[0].lower(), f"{args}: no {says!r} in {errors[0]!r}"

    def prepare(self) -> None:
        """text.txt, tokenizer/, data/ and config.json."""
        rng = random.Random(1)
        lines = [" ".join(rng.choices(WORDS, k=rng.randrange(4, 14))) for _ in range(4000)]
        (self.dir / "text.txt").write_text("\n".join(lines) + "\n")
        (self.dir / "config.json").write_text(json.dumps(CONFIG))
        self.run("tokenizer", "train", "--input", "text.txt", "--vocab-size", 300, "--out", "tokenizer")
        self.run("data", "prepare", "--tokenizer", "tokenizer", "--input", "text.txt", "--out", "data",
                 "--val-last-bytes", 5000)

    def train_flags(self, run: str, **flags) -> list[str]:
        values = {"config": "config.json", "data": "data", "out": run, "seq-length": 32, "batch": 4,
                  "steps": 30, "val-every": 0, "threads": 1, "dtype": "float32"}
        values |= {name.replace("_", "-"): value for name, value in flags.items()}
        return ["train", *(f"--{name}={value}" for name, value in values.items())]

    def losses(self, run: str) -> list[float]:
        lines = (self.dir / run / "log.jsonl").read_text().splitlines()
        return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
