"""Feeds mutated files to every parser: tokenizer.json, safetensors, token shards, config.json.

usage: parsers_test.py LAPLACE SOURCE_DIR FUZZ_DIR [RUNS]

A crash, a sanitizer's report, or an error that is not about bad input ends a fuzzer with a code other than 0.
"""
import struct
import subprocess
import sys
import tempfile
from pathlib import Path


def sound_files(program: str, source: Path, scratch: Path) -> dict[str, list[Path]]:
    subprocess.run([program, "tokenizer", "train", "--input", source / "README.md", "--vocab-size", "300",
                    "--out", scratch / "tokenizer"], check=True, capture_output=True)
    shard = scratch / "shard.bin"
    shard.write_bytes(struct.pack("<256i", 20240520, 1, 4, *[0] * 253) + struct.pack("<4H", 1, 2, 3, 4))
    wide = scratch / "wide.bin"
    wide.write_bytes(struct.pack("<256i", 20240801, 7, 2, *[0] * 253) + struct.pack("<2I", 70000, 3))
    golden = source / "tests/data/golden"
    return {
        "tokenizer_json": [scratch / "tokenizer/tokenizer.json"],
        "safetensors": [golden / f"{name}.safetensors" for name in ("decay", "schedule", "clip", "swiglu")],
        "shard": [shard, wide],
        "config": sorted((source / "configs").glob("*.json")),
    }


def main() -> None:
    program, source, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    runs = sys.argv[4] if len(sys.argv) > 4 else "3000"
    with tempfile.TemporaryDirectory() as scratch:
        for name, files in sound_files(program, source, Path(scratch)).items():
            subprocess.run([folder / f"fuzz_{name}", runs, "1", *files], check=True)


if __name__ == "__main__":
    main()
