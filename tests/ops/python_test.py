"""The operators from Python: loaded, by themselves against float64, checked by PyTorch's own tests, refused by sentence.

    python python_test.py liblaplace_ops.so
"""

import random
import sys

import torch

torch.ops.load_library(sys.argv[1])
ops = torch.ops.laplace
FAKE = ("test_faketensor", "test_aot_dispatch_dynamic")


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values in other places, with NaN around them."""
    how = random.randrange(4)
    if how == 1:
        order = random.sample(range(x.dim()), x.dim())
        return x.permute(order).contiguous().permute([order.index(i) for i in range(x.dim())])
    if how == 2:
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan, dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == 3:
        flat = torch.full((x.numel() + 3,), torch.nan, dtype=x.dtype)
        flat[3:] = x.reshape(-1)
        return flat[3:].view(x.shape)
    return x


def cases(B: int, T: int, H: int, dk: int, dv: int, dtype: torch.dtype):
    """(operator, its differentiable inputs) by name."""
    decay, starts = -torch.rand(H) * random.choice([1e-3, 0.1, 5]), torch.rand(B, T) < 0.2
    chunk, D = random.choice([1, 3, 16, 64]), dk + dv
    target = torch.randint(7, (B * T,))
    r = lambda *shape: rand(*shape, dtype=dtype)  # noqa: E731
    return {
        "gla_chunk": (lambda q, k, v, s: ops.gla_chunk(q, k, v, decay, s, starts, chunk),
                      (r(B, T, H, dk), r(B, T, H, dk), r(B, T, H, dv), rand(B, H, dk, dv))),
        "gla_output": (lambda *x: ops.gla_output(*x, 1e-5),
                       (r(B, T, H, dv), 0.3 * r(B, T, H, dk), 0.3 * r(B, T, H, dk), r(B, T, H, dv), r(B, T, H, dv), r(H, dk), r(1, dv))),
        "short_conv": (lambda x, w, s: ops.short_conv(x, w, s, starts), (r(B, T, D), r(D, 4), rand(B, 4, D))),
        "layer_norm": (lambda x, w: ops.layer_norm(x, w, 1e-5), (r(B, T, D + 2), r(D + 2))),
        "swiglu": (ops.swiglu, (r(B, T, 2 * D),)),
        "linear_cross_entropy": (lambda x, w: ops.linear_cross_entropy(x, w, target), (r(B * T, D), r(7, D))),
    }


def run(function, inputs, dtype=None, place=lambda x: x):
    """Outputs and gradients of `function` at `inputs`, all in float64."""
    leaves = [place(x.to(dtype or x.dtype)).detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    out = out if isinstance(out, tuple) else (out,)
    torch.manual_seed(5)
    loss = sum((x.double() * torch.randn(x.shape, dtype=torch.float64)).sum() for x in out)
    return [x.detach().double() for x in (*out, *torch.autograd.grad(loss, leaves))]


def check_values() -> None:
    for turn in range(60):
        random.seed(turn)
        torch.manual_seed(turn)
        dtype, bound = random.choice([(torch.float32, 1e-4), (torch.bfloat16, 6e-2)])
        sizes = [random.choice(c) for c in ((1, 3), (1, 2, 17, 65), (1, 3), (1, 5, 16, 33), (2, 7, 64))]
        for name, (function, inputs) in cases(*sizes, dtype).items():
            for got, want in zip(run(function, inputs, place=strided), run(function, inputs, torch.float64)):
                error = ((got - want).abs().max() / (want.abs().max() + 1e-6)).item()
                assert error < bound, f"{name} {sizes} {dtype}: {error}"


def check_registration() -> None:
    """Schemas, autograd, fake tensors, and tracing with what follows from them."""
    decay = -torch.rand(2)
    g = lambda *shape: torch.randn(*shape).requires_grad_()  # noqa: E731
    for name, arguments in {
        "gla_chunk": (g(2, 5, 2, 3), g(2, 5, 2, 3), g(2, 5, 2, 4), decay, g(2, 2, 3, 4), None, 4),
        "gla_output": (g(2, 5, 2, 4), g(2, 5, 2, 3), g(2, 5, 2, 3), g(2, 5, 2, 4), g(2, 5, 2, 4), g(2, 3), g(1, 4), 1e-5),
        "short_conv": (g(2, 5, 6), g(6, 4), None, None),
        "layer_norm": (g(2, 6), g(6), 1e-5),
        "swiglu": (g(2, 6),),
        "linear_cross_entropy": (g(4, 6), g(9, 6), torch.tensor([0, 1, 2, 8])),
        "linear_log_prob": (rand(4, 6), rand(9, 6), torch.tensor([0, 1, 2, 8])),
        "gla_step": (rand(2, 2, 3), rand(2, 2, 3), rand(2, 2, 4), decay, rand(2, 2, 3, 4)),
    }.items():
        # gla_chunk makes powers of the decay on the host, so that tensors without values cannot pass.
        tests = ("test_schema", "test_autograd_registration", *([] if name == "gla_chunk" else FAKE))
        torch.library.opcheck(getattr(ops, name).default, arguments, test_utils=tests)


def check_refusals() -> None:
    for arguments, says in (
        ((rand(2, 2, 3), rand(1, 2, 3), rand(2, 2, 4), -torch.rand(2), rand(2, 2, 3, 4)), "k has shape"),
        ((rand(2, 2, 3), rand(2, 2, 3), rand(2, 2, 4), -torch.rand(2), rand(2, 2, 3, 4).half()), "state has dtype"),
    ):
        try:
            ops.gla_step(*arguments)
            raise AssertionError(f"taken, not refused with {says!r}")
        except RuntimeError as error:
            assert says in str(error), error


def main() -> None:
    for check in (check_values, check_registration, check_refusals):
        check()
        print(check.__name__, "passed")


if __name__ == "__main__":
    main()
