"""Trains DeepLabV3+ on CamVid with PyTorch: the peer of models/recipes/deeplabv3plus_camvid.json.

The model is that of ../fixtures/record_convolutional.py (torchvision's parts, the decoder of the paper) with narrower
widths. Pictures are treated as core/data/mask_transforms.h says: scaled to the input, which has their proportions,
times a random factor from 0.5 to 2, cropped at random with the mean colour and ignored labels around them, mirrored
half of the time. The ranks of the other run are emulated: each takes its share of a batch, with batch norms of its own,
and evaluation has the running statistics of the first, which DistributedDataParallel gives to all. The loss is the mean
over the counted pixels of all shares, as ours is; with --mean_per_rank, as DistributedDataParallel makes it, the
average of each share's own mean. Prints one JSON object: mean IoU and pixel accuracy of the validation pictures after
each epoch, seconds of training, the configuration and the versions.

  SWITCHYARD_DATA=... python torch_deeplab_camvid.py [--epochs=60 --batch=8 --ranks=2 --threads=2 --seed=42 ...]
"""

import argparse
import gzip
import io
import json
import math
import os
import platform
import tarfile
import time

import numpy as np
import PIL
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import nn
from torchvision.models.resnet import Bottleneck
from torchvision.models.segmentation.deeplabv3 import ASPP

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
CLASSES, UNLABELLED, IGNORED = 11, 11, 255


def camvid(split):
    """Pictures uint8 (N, H, W, 3) and masks uint8 (N, H, W), 255 where nothing counts."""
    folder = os.path.join(os.environ["SWITCHYARD_DATA"], "camvid")
    with gzip.open(f"{folder}/{split}-labels-idx3-ubyte.gz") as file:
        head = np.frombuffer(file.read(16), ">u4")
        masks = np.frombuffer(file.read(), np.uint8).reshape(head[1:]).copy()
    masks[masks == UNLABELLED] = IGNORED
    with tarfile.open(f"{folder}/camvid_images.tar") as tar, open(f"{folder}/{split}-files.txt") as names:
        pictures = [np.asarray(Image.open(io.BytesIO(tar.extractfile(f"camvid/{split}/{name.strip()}").read())))
                    for name in names]
    return np.stack(pictures), masks


class Stage(nn.Sequential):
    """A stage of torchvision's ResNet of any width: the first block strides and dilates as the stage before did."""

    def __init__(self, inputs, planes, blocks, stride, dilation_before, dilation):
        outputs = planes * Bottleneck.expansion
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        first = Bottleneck(inputs, planes, stride, shortcut, dilation=dilation_before)
        super().__init__(first, *(Bottleneck(outputs, planes, dilation=dilation) for _ in range(1, blocks)))


class DeepLabV3Plus(nn.Module):
    """At output stride 16 over a ResNet-50, whose stem has `width` channels too."""

    def __init__(self, classes, width, decoder_width, dropout):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        self.layer1 = Stage(width, width, 3, 1, 1, 1)
        self.layer2 = Stage(4 * width, 2 * width, 4, 2, 1, 1)
        self.layer3 = Stage(8 * width, 4 * width, 6, 2, 1, 1)
        self.layer4 = Stage(16 * width, 8 * width, 3, 1, 1, 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        d = decoder_width
        self.aspp = ASPP(32 * width, [6, 12, 18], d)
        self.aspp.project[3].p = dropout
        self.low_level = nn.Sequential(nn.Conv2d(4 * width, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.decoder = nn.Sequential(nn.Conv2d(d + 48, d, 3, padding=1, bias=False), nn.BatchNorm2d(d), nn.ReLU(),
                                     nn.Conv2d(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d), nn.ReLU())
        self.classifier = nn.Conv2d(d, classes, 1)

    def forward(self, x):
        def resize(y, like):
            return F.interpolate(y, size=like.shape[-2:], mode="bilinear", align_corners=False)

        first = self.layer1(self.stem(x))
        low = self.low_level(first)
        y = resize(self.aspp(self.layer4(self.layer3(self.layer2(first)))), low)
        return resize(self.classifier(self.decoder(torch.cat([y, low], 1))), x)


def crop(array, top, left, fill):
    """The window (height, width) at (top, left) of an array, which may lie partly outside: `fill` there."""
    scaled, (height, width) = array
    out = np.empty((height, width) + scaled.shape[2:], np.uint8)
    out[:] = fill
    y0, x0 = max(0, -top), max(0, -left)
    y1, x1 = min(height, scaled.shape[0] - top), min(width, scaled.shape[1] - left)
    out[y0:y1, x0:x1] = scaled[top + y0 : top + y1, left + x0 : left + x1]
    return out


def resized(picture, mask, height, width):
    size = (width, height)
    return (np.asarray(Image.fromarray(picture).resize(size, Image.BILINEAR)),
            np.asarray(Image.fromarray(mask).resize(size, Image.NEAREST)))


def augment(picture, mask, height, width, random):
    scale = random.uniform(0.5, 2)
    h, w = max(1, round(height * scale)), max(1, round(width * scale))

    def begin(size, extent):
        return int(random.integers(min(0, size - extent), max(0, size - extent) + 1))

    top, left = begin(h, height), begin(w, width)
    picture, mask = resized(picture, mask, h, w)
    picture = crop((picture, (height, width)), top, left, np.uint8(np.round(255 * MEAN)))
    mask = crop((mask, (height, width)), top, left, IGNORED)
    return (picture[:, ::-1], mask[:, ::-1]) if random.random() < 0.5 else (picture, mask)


def tensors(pictures, masks):
    x = (np.stack(pictures).astype(np.float32) / 255 - MEAN) / STD
    x = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return x, torch.from_numpy(np.stack(masks).astype(np.int64))


def evaluate(model, pictures, masks):
    """Mean IoU over the classes that are there or predicted, and pixel accuracy, over all counted pixels."""
    model.eval()
    counts = np.zeros((CLASSES, CLASSES))
    with torch.no_grad():
        for i in range(0, len(masks), 8):
            x, y = tensors(pictures[i : i + 8], masks[i : i + 8])
            counted = y != IGNORED
            pairs = y[counted] * CLASSES + model(x).argmax(1)[counted]
            counts += np.bincount(pairs.numpy(), minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    model.train()
    union = counts.sum(0) + counts.sum(1) - np.diag(counts)
    return float((np.diag(counts) / union)[union > 0].mean()), float(np.diag(counts).sum() / counts.sum())


def rate(c, step, steps, per_epoch):
    warmup = c.warmup_epochs * per_epoch
    if step < warmup:
        return c.lr * step / warmup
    return 0.5 * c.lr * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(epochs=60, batch=8, ranks=2, threads=2, seed=42, height=96, width_of_input=128, width=16, decoder_width=64, lr=2e-3,
                              weight_decay=1e-4, warmup_epochs=1, dropout=0.1).items():
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument("--mean_per_rank", action="store_true")
    c = parser.parse_args()
    torch.set_num_threads(c.threads)
    torch.manual_seed(c.seed)
    random = np.random.default_rng(c.seed)
    pictures, masks = camvid("train")
    fitted = [resized(*sample, c.height, c.width_of_input) for sample in zip(*camvid("val"))]
    validation = [np.stack(arrays) for arrays in zip(*fitted)]
    model = DeepLabV3Plus(CLASSES, c.width, c.decoder_width, c.dropout).to(memory_format=torch.channels_last)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0}], lr=c.lr,
                                  weight_decay=c.weight_decay)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momentum = norms[0].momentum
    per_epoch = len(masks) // c.batch
    curve, step, seconds = [], 0, 0.0
    for epoch in range(c.epochs):
        began, losses = time.perf_counter(), []
        order = random.permutation(len(masks))
        for i in range(per_epoch):
            for group in optimizer.param_groups:
                group["lr"] = rate(c, step, c.epochs * per_epoch, per_epoch)
            batch = order[i * c.batch : (i + 1) * c.batch]
            optimizer.zero_grad()
            shares = [tensors(*zip(*(augment(pictures[k], masks[k], c.height, c.width_of_input, random) for k in share)))
                      for share in np.split(batch, c.ranks)]
            counted = [int((y != IGNORED).sum()) for _, y in shares]
            total = 0.0
            for rank, (x, y) in enumerate(shares):
                for norm in norms:
                    norm.momentum = momentum if rank == 0 else 0.0
                divisor = c.ranks * counted[rank] if c.mean_per_rank else sum(counted)
                loss = F.cross_entropy(model(x), y, ignore_index=IGNORED, reduction="sum") / divisor
                loss.backward()
                total += loss.item()
            losses.append(total)
            optimizer.step()
            step += 1
        seconds += time.perf_counter() - began
        miou, accuracy = evaluate(model, *validation)
        curve.append({"epoch": epoch + 1, "loss": float(np.mean(losses)), "miou": miou, "pixel_accuracy": accuracy,
                      "seconds": round(seconds, 1)})
        print(curve[-1], flush=True)
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "PIL": PIL.__version__,
                "numpy": np.__version__, "python": platform.python_version()}
    print(json.dumps({"config": vars(c), "versions": versions, "curve": curve}))


if __name__ == "__main__":
    main()
