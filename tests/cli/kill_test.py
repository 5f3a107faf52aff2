"""kill -9 at random moments of training, then --resume: the losses are the unbroken run's, bit for bit.

    python kill_test.py PROGRAM [KILLS]
"""

import random
import sys
import tempfile
import time

from program import Program


def kill_and_compare(program: Program, dtype: str, kills: int) -> None:
    flags = dict(steps=400, dtype=dtype, checkpoint_every=7)
    begun = time.monotonic()
    program.run(*program.train_flags(f"whole-{dtype}", **flags))
    longest = time.monotonic() - begun
    run = f"broken-{dtype}"
    killed = 0
    while killed < kills:
        child = program.start(*program.train_flags(run, **flags), "--resume")
        try:
            child.communicate(timeout=random.uniform(0.3, 0.5 + longest / kills))
        except Exception:  # still running: the moment has come
            child.kill()
            child.communicate()
            killed += 1
            continue
        assert child.returncode == 0, f"training ended with {child.returncode}"
        break
    program.run(*program.train_flags(run, **flags), "--resume")
    whole, broken = program.losses(f"whole-{dtype}"), program.losses(run)
    assert len(whole) == 400 and whole == broken, f"{dtype}: the losses differ after {killed} kills"
    assert whole[-1] < whole[0]
    print(f"{dtype}: {killed} kills, {len(whole)} losses equal bit for bit")


def main() -> None:
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as directory:
        program = Program(sys.argv[1], directory)
        program.prepare()
        for dtype in ("float32", "bfloat16"):
            kill_and_compare(program, dtype, kills)


if __name__ == "__main__":
    main()
