"""Times a training step of a 3-D U-Net in PyTorch on the CPU: forward, BCE-Dice, backward, Adam update.

The model is record_unet3d.UNet3d, which equals ours; only torch and numpy are needed. As PyTorch does best on a CPU:
eager f32, channels_last_3d volumes and weights, fused Adam. Prints one JSON object: median and all samples in ms per
step, volumes/s, peak resident memory in MiB, the part of it that importing torch alone takes, and the versions.

  python torch_unet3d_step.py --patch=64,64,64 --width=32 --levels=4 --batch=1 --threads=2 [--steps=5]
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
from record_unet3d import UNet3d
from torch_models import versions


def peak_rss_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def bce_dice(logits, targets):
    p = logits.sigmoid()
    dice = 2 * (p * targets).sum() / (p + targets).sum().clamp_min(1e-5)
    return F.binary_cross_entropy_with_logits(logits, targets) + 1 - dice


def main():
    imported = peak_rss_mib()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patch", default="64,64,64", help="voxels: depth, height, width")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1, help="volumes per step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones")
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(42)
    extents = [int(extent) for extent in a.patch.split(",")]
    model = UNet3d(False, a.width, a.levels, 1).to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.Adam(model.parameters(), 2e-4, weight_decay=1e-4, fused=True)
    volumes = torch.randn(a.batch, 1, *extents).contiguous(memory_format=torch.channels_last_3d)
    targets = (torch.randn(a.batch, 1, *extents) > 1).float()

    def step():
        loss = bce_dice(model(volumes), targets)
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
    result = {
        "engine": "torch eager",
        "model": f"unet3d, width {a.width}, {a.levels} levels",
        "patch": a.patch,
        "batch": a.batch,
        "threads": a.threads,
        "ms_per_step": round(median, 3),
        "volumes_per_s": round(1e3 * a.batch / median, 3),
        "peak_rss_mib": peak_rss_mib(),
        "import_rss_mib": imported,
        "samples_ms": [round(s, 3) for s in samples],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "versions": versions(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
