"""Times a training step of a ViT in PyTorch on the CPU: forward, cross entropy, backward, AdamW update.

The model is torch_models.VisionTransformer, which equals timm's; only torch and numpy are needed. As PyTorch does
best on a CPU: f32 or bf16 autocast, fused scaled-dot-product attention, channels-last images, and of the fused and
the foreach AdamW the one that a short trial finds quicker. Prints one JSON object: median and all samples in ms per
step, images/s, peak resident memory in MiB, the part of it that importing torch alone takes (a CUDA build's is
large), and the versions.

  python torch_vit_step.py --model=vit_small_patch16_224 --batch=8 --dtype=f32 --threads=2 [--compile] [--steps=10]
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
from torch_models import VIT, VisionTransformer, adamw, formula_weights, versions


def quickest_adamw(model):
    """The implementation of AdamW whose update takes least time on this model, and its name."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    times = {}
    for name in ("fused", "foreach"):
        optimizer = adamw(model, 0.0, 0.0, **{name: True})
        optimizer.step()
        samples = []
        for _ in range(3):
            began = time.perf_counter()
            optimizer.step()
            samples.append(time.perf_counter() - began)
        times[name] = min(samples)
        optimizer.state.clear()
    name = min(times, key=times.get)
    model.zero_grad()
    return adamw(model, 1e-3, 0.05, **{name: True}), name


def peak_rss_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main():
    imported = peak_rss_mib()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(VIT), default="vit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16 is autocast over f32 weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(42)
    model = formula_weights(VisionTransformer(**VIT[a.model])).to(memory_format=torch.channels_last)
    optimizer, kind = quickest_adamw(model)
    forward = torch.compile(model) if a.compile else model
    images = torch.rand(a.batch, 3, 224, 224).mul(2).sub(1).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (a.batch,))

    def step():
        half = torch.autocast("cpu", torch.bfloat16) if a.dtype == "bf16" else contextlib.nullcontext()
        with half:
            loss = F.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    losses, samples = [step() for _ in range(a.warmup)], []
    for _ in range(a.steps):
        began = time.perf_counter()
        losses.append(step())
        samples.append(1e3 * (time.perf_counter() - began))
    median = statistics.median(samples)
    print(
        json.dumps(
            {
                "engine": "torch compile" if a.compile else "torch eager",
                "model": a.model,
                "batch": a.batch,
                "dtype": a.dtype,
                "threads": a.threads,
                "adamw": kind,
                "ms_per_step": round(median, 3),
                "images_per_s": round(1e3 * a.batch / median, 3),
                "peak_rss_mib": peak_rss_mib(),
                "import_rss_mib": imported,
                "samples_ms": [round(s, 3) for s in samples],
                "first_loss": losses[0],
                "last_loss": losses[-1],
                "versions": versions(),
            }
        )
    )


if __name__ == "__main__":
    main()
