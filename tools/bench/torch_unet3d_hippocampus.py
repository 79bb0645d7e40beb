"""Trains a 3-D U-Net on the hippocampus volumes with PyTorch: the peer of a `switchyard train --model=unet3d` run.

The model is record_unet3d.UNet3d, which equals ours. Volumes, patches and evaluation are as core/data/volume_transforms.h
and core/train/sliding_window.h say: z-scores of the whole volume, a random patch, mirrored along each axis half of the
time, intensities times and plus a random amount; evaluation by a sliding window whose logits are averaged. Several ranks
with --sync_batchnorm compute what one process computes on the whole batch, as here. One logit: foreground or not.
Prints one JSON object an epoch (epoch, train_loss, dice, seconds), then one with the settings and versions.

  SWITCHYARD_DATA=... python torch_unet3d_hippocampus.py --patch=32,32,32 --width=8 --levels=3 --batch=2 --epochs=15 \
      --lr=1e-3 --milestones=5,10 --seed=1 [--dtype=bf16]
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import sys
import time

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
from record_unet3d import UNet3d
from torch_models import versions
from torch_train_step import bce_dice


def hippocampus(split):
    """Z-scores f32 (N, D, H, W) and foreground bool (N, D, H, W)."""
    arrays = []
    for kind in ("images", "labels"):
        with gzip.open(os.path.join(os.environ["SWITCHYARD_DATA"], "hippocampus3d", f"{split}-{kind}-idx4-ubyte.gz")) as f:
            raw = f.read()
        extents = np.frombuffer(raw, ">u4", 4, 4)
        arrays.append(np.frombuffer(raw, np.uint8, offset=20).reshape(extents))
    volumes = arrays[0].astype(np.float64)
    volumes -= volumes.mean((1, 2, 3), keepdims=True)
    volumes /= volumes.std((1, 2, 3), keepdims=True)
    return volumes.astype(np.float32), arrays[1] > 0


def training_patch(volume, mask, patch, random):
    start = [random.integers(0, extent - side + 1) for extent, side in zip(volume.shape, patch)]
    place = tuple(slice(at, at + side) for at, side in zip(start, patch))
    axes = [axis for axis in range(3) if random.random() >= 0.5]
    scale, shift = 1 + random.uniform(-0.1, 0.1), random.uniform(-0.1, 0.1)
    return np.flip(volume[place], axes) * np.float32(scale) + np.float32(shift), np.flip(mask[place], axes)


def window_starts(extents, patch, overlap=0.25):
    along = []
    for extent, side in zip(extents, patch):
        step, spare = max(1, int(side * (1 - overlap))), extent - side
        along.append(sorted({min(at, spare) for at in range(0, spare + step, step)}))
    return itertools.product(*along)


def tensor(arrays):
    return torch.from_numpy(np.stack(arrays)[:, None]).contiguous(memory_format=torch.channels_last_3d)


def evaluate(model, volumes, masks, patch, autocast):
    """Dice of the foreground over all voxels of all volumes."""
    both = total = 0
    for volume, mask in zip(volumes, masks):
        places = [tuple(slice(a, a + s) for a, s in zip(at, patch)) for at in window_starts(volume.shape, patch)]
        with torch.no_grad(), autocast:
            logits = torch.cat([model(tensor([volume[p]])).float() for p in places])[:, 0].numpy()
        sums, counts = np.zeros_like(volume), np.zeros_like(volume)
        for place, window in zip(places, logits):
            sums[place] += window
            counts[place] += 1
        predicted = sums / counts > 0
        both += int((predicted & mask).sum())
        total += int(predicted.sum()) + int(mask.sum())
    return 2 * both / total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patch", default="32,32,32", help="voxels: depth, height, width")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2, help="volumes per update")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--milestones", default="5,10", help="epochs after which the rate is a fifth")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16 is autocast over f32 weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    random = np.random.default_rng(o.seed)
    patch = [int(extent) for extent in o.patch.split(",")]
    volumes, masks = hippocampus("train")
    held_out, held_out_masks = hippocampus("test")
    model = UNet3d(False, o.width, o.levels, 1).to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.Adam(model.parameters(), o.lr, weight_decay=o.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(m) for m in o.milestones.split(",")], gamma=0.2)
    autocast = torch.autocast("cpu", torch.bfloat16) if o.dtype == "bf16" else contextlib.nullcontext()
    began = time.time()
    for epoch in range(1, o.epochs + 1):
        model.train()
        losses = []
        for batch in np.array_split(random.permutation(len(volumes)), len(volumes) // o.batch):
            cut = [training_patch(volumes[i], masks[i], patch, random) for i in batch]
            with autocast:
                logits = model(tensor([c[0] for c in cut])).float()
            loss = bce_dice(logits, tensor([c[1].astype(np.float32) for c in cut]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        model.eval()
        dice = evaluate(model, held_out, held_out_masks, patch, autocast)
        print(json.dumps({"epoch": epoch, "train_loss": round(float(np.mean(losses)), 4), "dice": round(dice, 4),
                          "seconds": round(time.time() - began, 1)}), flush=True)
    print(json.dumps({"settings": vars(o), "versions": versions()}))


if __name__ == "__main__":
    main()
