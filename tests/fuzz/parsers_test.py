"""Feeds mutated files to every parser: tokenizer.json, safetensors, states, token shards, config.json.

usage: parsers_test.py SOURCE_DIR FUZZ_DIR [RUNS]

A crash, a sanitizer's report, or an error that is not about bad input ends a fuzzer with a code other than 0.
"""
import subprocess
import sys
import tempfile
from pathlib import Path


def sound_files(source: Path, folder: Path, scratch: Path) -> dict[str, list[Path]]:
    subprocess.run([folder / "fuzz_seeds", scratch, source / "README.md"], check=True)
    golden = source / "tests/data/golden"
    return {
        "tokenizer_json": [scratch / "tokenizer/tokenizer.json"],
        "safetensors": [golden / f"{name}.safetensors" for name in ("decay", "schedule", "clip", "swiglu")],
        "state": sorted((scratch / "states").iterdir()),
        "shard": [scratch / "shard2.bin", scratch / "shard4.bin"],
        "config": sorted((source / "configs").glob("*.json")),
    }


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    runs = sys.argv[3] if len(sys.argv) > 3 else "3000"
    with tempfile.TemporaryDirectory() as scratch:
        for name, files in sound_files(source, folder, Path(scratch)).items():
            print(f"{name}: ", end="", flush=True)
            subprocess.run([folder / f"fuzz_{name}", runs, "1", *files], check=True)


if __name__ == "__main__":
    main()
