"""Training speed of laplace and of the same model in plain PyTorch, interleaved in one run.

usage: train_speed.py [--config configs/demo.json] [--micro-batch 16] [--seq-length 256]
                      [--dtype float32|bfloat16] [--compile] [--rounds 3] [--program build/laplace]

Forward and backward of a micro-batch, no optimiser, on both sides; the best of the rounds counts. PyTorch
runs eagerly, or through torch.compile with --compile; bfloat16 is its CPU autocast.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.nn.functional as F
from laplace_ref import Config, Laplace


def torch_step(config: Config, args: argparse.Namespace):
    """A function that runs one forward and backward and returns its seconds."""
    model = Laplace(config)
    model.reset_parameters(0)
    parameters = list(model.parameters())
    tokens = torch.randint(0, config.vocab_size, (args.micro_batch, args.seq_length + 1))

    def loss_of(tokens):
        half = torch.autocast("cpu", torch.bfloat16) if args.dtype == "bfloat16" else contextlib.nullcontext()
        with half:
            logits, _ = model.prefill(tokens[:, :-1])
            return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    loss_fn = torch.compile(loss_of) if args.compile else loss_of

    def step() -> float:
        start = time.perf_counter()
        loss_fn(tokens).backward()
        for p in parameters:
            p.grad = None
        return time.perf_counter() - start

    return step


def laplace_step(args: argparse.Namespace, kernels: str) -> float:
    """Seconds of laplace's forward and backward: the best of two in a process of its own."""
    command = [args.program, "bench", "train", "--config", args.config, "--micro-batch", str(args.micro_batch),
               "--seq-length", str(args.seq_length), "--dtype", args.dtype, "--rounds", "2", "--json"]
    run = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"LAPLACE_KERNELS": kernels})
    return json.loads(run.stdout)["micro_batch_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/demo.json")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default="build/laplace")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    step = torch_step(Config.load(Path(args.config)), args)
    step()  # warm-up, and compilation
    times = {"pytorch": [], "laplace": [], "laplace, portable operators": []}
    for _ in range(args.rounds):
        times["pytorch"] += [step(), step()]
        times["laplace"].append(laplace_step(args, "fused"))
        times["laplace, portable operators"].append(laplace_step(args, "portable"))
    tokens = args.micro_batch * args.seq_length
    base = min(times["pytorch"])
    for name, seconds in times.items():
        best = min(seconds)
        label = name + (" compiled" if args.compile else " eager") if name == "pytorch" else name
        print(f"{label:28} {best * 1e3:9.1f} ms  {tokens / best:8.0f} tokens/s  {base / best:5.2f} x")


if __name__ == "__main__":
    main()
