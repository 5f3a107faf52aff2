#!/usr/bin/env python3
"""Checks that includes go only down the floors of src/, as docs/structure.md lists them."""

import pathlib
import re
import sys

# What each room may include besides itself.
MAY_INCLUDE = {
    "base": set(),
    "ops": {"base"},
    "text": {"base"},
    "dist": {"base"},
    "model": {"ops", "base"},
    "data": {"text", "dist", "base"},
    "optim": {"dist", "ops", "base"},
    "train": {"data", "optim", "model", "text", "dist", "ops", "base"},
    "serve": {"data", "optim", "model", "text", "dist", "ops", "base"},
    "eval": {"data", "optim", "model", "text", "dist", "ops", "base"},
    "plan": {"model", "dist", "base"},
    "cli": {"train", "serve", "eval", "plan", "data", "optim", "model", "text", "dist", "ops", "base"},
}
INCLUDE = re.compile(r'^\s*#include\s+"([^"/]+)/')


def main() -> int:
    source = pathlib.Path(__file__).resolve().parent.parent / "src"
    wrong = []
    files = 0
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        files += 1
        room = path.relative_to(source).parts[0]
        if room not in MAY_INCLUDE:
            wrong.append(f"{path.relative_to(source)}: the folder {room} has no floor; add it to check_floors.py")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match and match[1] != room and match[1] not in MAY_INCLUDE[room]:
                wrong.append(f"{path.relative_to(source)}:{number}: {room} may not include {match[1]}")
    print("\n".join(wrong) if wrong else f"{files} files, all includes go down")
    return 1 if wrong or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
