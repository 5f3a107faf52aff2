"""Exchange of safetensors with Python's own library, in both directions.

Usage: safetensors_python_test.py TEST_BINARY LAPLACE

TEST_BINARY (test_model) writes a file that Python opens; Python writes one that `LAPLACE inspect --json
--stats` opens. Needs numpy and safetensors.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def check_ours_in_python(test_binary: str, path: pathlib.Path) -> None:
    subprocess.run(
        [test_binary, "--gtest_filter=SafetensorsTest.WritesForPython"],
        env={**os.environ, "LAPLACE_TEST_OUTPUT": str(path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    squares = (np.arange(12, dtype=np.float32) ** 2).reshape(3, 4)
    expected = {
        "squares": squares,
        "transposed": squares.T,
        "ids": np.arange(5, dtype=np.int64),
        "flags": np.array([False, True, False]),
        "double": np.arange(2, dtype=np.float64),
        "half": squares.astype(np.float16),
        "empty": np.zeros((0, 7), np.float32),
        "scalar": np.array(2.5, np.float32),
    }
    loaded = load_file(path)
    assert loaded.keys() == expected.keys(), loaded.keys()
    for name, want in expected.items():
        assert loaded[name].dtype == want.dtype, name
        assert loaded[name].shape == want.shape, name
        assert np.array_equal(loaded[name], want), name
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt", "note": 'π "quoted"'}, opened.metadata()


def check_pythons_in_ours(laplace: str, path: pathlib.Path) -> None:
    values = np.array([[1.5, -2.0, 4.0], [np.inf, np.nan, 0.5]], np.float32)
    tensors = {
        "values": values,
        "ids": np.array([7, -9], np.int64),
        "bytes": np.array([1, 2, 250], np.uint8),
        "words": np.array([1, 65535], np.uint16),
        "flags": np.array([True, False]),
        "empty": np.zeros((3, 0), np.float16),
        "scalar": np.array(2.5, np.float64),
    }
    save_file(tensors, path, metadata={"made by": "python"})
    printed = subprocess.run(
        [laplace, "inspect", "--json", "--stats", str(path)], capture_output=True, check=True
    ).stdout
    (file,) = json.loads(printed)["files"]
    assert file["metadata"] == {"made by": "python"}
    found = {tensor["name"]: tensor for tensor in file["tensors"]}
    assert found.keys() == tensors.keys(), found.keys()
    for name, array in tensors.items():
        assert found[name]["shape"] == list(array.shape), name
        assert found[name]["bytes"] == array.nbytes, name
        finite = array[np.isfinite(array)].astype(np.float64)
        stats = found[name]["stats"]
        assert stats["non_finite"] == array.size - finite.size, name
        if finite.size:
            assert stats["min"] == finite.min() and stats["max"] == finite.max(), name
            assert abs(stats["mean"] - finite.mean()) < 1e-12, name
    dtypes = {name: tensor["dtype"] for name, tensor in found.items()}
    assert dtypes["values"] == "F32" and dtypes["words"] == "U16" and dtypes["flags"] == "BOOL"


def check_damage_is_refused(laplace: str, path: pathlib.Path) -> None:
    damaged = path.with_name("cut.safetensors")
    damaged.write_bytes(path.read_bytes()[:-1])
    result = subprocess.run([laplace, "inspect", str(damaged)], capture_output=True, text=True)
    assert result.returncode == 2, result
    assert "cut short" in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == "", result.stdout


def main() -> None:
    test_binary, laplace = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as scratch:
        ours = pathlib.Path(scratch) / "ours.safetensors"
        theirs = pathlib.Path(scratch) / "theirs.safetensors"
        check_ours_in_python(test_binary, ours)
        check_pythons_in_ours(laplace, theirs)
        check_damage_is_refused(laplace, theirs)
    print("ok")


if __name__ == "__main__":
    main()
