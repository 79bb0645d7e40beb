"""Trains a classifier on CIFAR-10 or beans in PyTorch with the settings of a `switchyard train` run, for curves side by
side.

Both ranks of a run see half of each batch; here one process has the whole batch, but batch norms take each half's own
statistics (--halves=2), as two ranks without --sync_batchnorm do, and running statistics are those of the first half, as
DistributedDataParallel gives them to all. Pictures are resized to --image_size (bilinear),
crops are padded by 4 pixels and mirrored, the learning rate is cosine with a warm-up, and evaluation uses the test file
of CIFAR-10 and the validation pictures of beans, whole (--crop_ratio=1 and --augmentation=crop_flip of the other run).
What decays is what core/optim/parameter_rules.h says. Models other than resnet18 are timm's, with the variant's
arguments in --model_args. Prints one JSON object an epoch (epoch, train_loss, val_loss, top1, seconds), then one with
the settings and versions.

  python torch_training.py --model=resnet18 --data=FOLDER/cifar10 --epochs=15 --batch=128 --lr=0.1 --seed=1 \
      [--image_size=64 --stem=imagenet] [--dtype=bf16] [--optimizer=sgd|adamw] [--weight_decay=5e-4] \
      [--warmup_epochs=1] [--min_lr=0] [--clip=0] [--label_smoothing=0] [--threads=2]
  python torch_training.py --model=vit_tiny_patch16_224 --data=FOLDER/beans --image_size=64 \
      --model_args='{"patch_size": 8, "embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2}'
"""

import argparse
import contextlib
import json
import math
import os
import tarfile
import time

import numpy as np
import timm
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_cifar10(folder):
    """(images u8 (N, 32, 32, 3), labels i64 (N)) of training and of test, from cifar-10-binary.tar.gz."""
    records = {}
    with tarfile.open(os.path.join(folder, "cifar-10-binary.tar.gz")) as tar:
        for member in tar:
            if member.name.endswith(".bin"):
                raw = np.frombuffer(tar.extractfile(member).read(), np.uint8).reshape(-1, 3073)
                records[os.path.basename(member.name)] = raw
    train = np.concatenate([records[f"data_batch_{i}.bin"] for i in range(1, 6)])
    return [(r[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), r[:, 0].astype(np.int64))
            for r in (train, records["test_batch.bin"])]


def read_beans(folder, side):
    """(images u8 (N, side, side, 3), labels i64 (N)) of training and of validation, from beans.tar, stretched."""
    splits = {"train": ([], []), "validation": ([], [])}
    with tarfile.open(os.path.join(folder, "beans.tar")) as tar:
        members = sorted((m for m in tar if m.name.endswith(".jpg")), key=lambda m: m.name)
        classes = sorted({m.name.split("/")[-2] for m in members})
        for member in members:
            split, label = member.name.split("/")[-3:-1]
            if split in splits:
                image = Image.open(tar.extractfile(member)).convert("RGB")
                splits[split][0].append(np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)))
                splits[split][1].append(classes.index(label))
    return len(classes), [(np.stack(images), np.array(labels)) for images, labels in splits.values()]


def crop_and_flip(images, random):
    """Pads by 4 pixels of 0, takes a crop of the image's size, mirrors one in two. images: u8 (B, H, W, C)."""
    b, h, w, _ = images.shape
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    out = np.empty_like(images)
    for i, (y, x, flip) in enumerate(zip(random.integers(0, 9, b), random.integers(0, 9, b), random.random(b) < 0.5)):
        crop = padded[i, y:y + h, x:x + w]
        out[i] = crop[:, ::-1] if flip else crop
    return out


def to_tensor(images):
    mean, std = np.float32(IMAGENET_MEAN), np.float32(IMAGENET_STD)
    pixels = (images.astype(np.float32) / 255 - mean) / std
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)  # strides of channels_last


def enlarge(images, side):
    """images: u8 (N, H, W, C); the same with sides of `side` pixels."""
    if images.shape[1] == side:
        return images
    return np.stack([np.asarray(Image.fromarray(i).resize((side, side), Image.Resampling.BILINEAR)) for i in images])


def build(name, classes, image_size, stem, arguments):
    if name == "resnet18":
        model = torchvision.models.resnet18(num_classes=classes)
        if stem == "small":  # a 3x3 convolution that keeps the extents, and no pooling
            model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            torch.nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
            model.maxpool = torch.nn.Identity()
        return model.to(memory_format=torch.channels_last)
    return timm.create_model(name, num_classes=classes, img_size=image_size, **arguments)


def decays(name, parameter):
    return parameter.dim() > 1 and not name.endswith(("pos_embed", "cls_token", "relative_position_bias_table"))


def rate(step, steps, warmup, peak, least):
    if step < warmup:
        return peak * step / warmup
    return least + 0.5 * (peak - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="resnet18, or a name of timm's")
    parser.add_argument("--model_args", type=json.loads, default={}, help="JSON object of arguments of timm's")
    parser.add_argument("--data", required=True, help="folder with cifar-10-binary.tar.gz or beans.tar")
    parser.add_argument("--image_size", type=int, default=32, help="side of what the model takes, pixels")
    parser.add_argument("--stem", choices=["small", "imagenet"], default="small", help="of resnet18")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128, help="images per update")
    parser.add_argument("--halves", type=int, default=2, help="parts of a batch with statistics of their own")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--min_lr", type=float, default=0)
    parser.add_argument("--clip", type=float, default=0, help="largest norm of the gradient; 0: any")
    parser.add_argument("--label_smoothing", type=float, default=0)
    parser.add_argument("--weight_decay", type=float, default=5e-4)
    parser.add_argument("--warmup_epochs", type=int, default=1)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16 is autocast over f32 weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    random = np.random.default_rng(o.seed)
    if os.path.exists(os.path.join(o.data, "beans.tar")):
        classes, ((images, labels), (test_images, test_labels)) = read_beans(o.data, o.image_size)
    else:
        classes, ((images, labels), (test_images, test_labels)) = 10, read_cifar10(o.data)
        images, test_images = enlarge(images, o.image_size), enlarge(test_images, o.image_size)
    model = build(o.model, classes, o.image_size, o.stem, o.model_args)
    decayed = [p for name, p in model.named_parameters() if decays(name, p)]
    others = [p for name, p in model.named_parameters() if not decays(name, p)]
    groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0}]
    optimizer = (torch.optim.SGD(groups, lr=o.lr, momentum=0.9, nesterov=True) if o.optimizer == "sgd"
                 else torch.optim.AdamW(groups, lr=o.lr))
    autocast = (torch.autocast("cpu", torch.bfloat16) if o.dtype == "bf16" else contextlib.nullcontext())
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    per_epoch = len(images) // o.batch
    steps, step, began = per_epoch * o.epochs, 0, time.time()
    for epoch in range(1, o.epochs + 1):
        model.train()
        order, losses = random.permutation(len(images)), []
        for k in range(per_epoch):
            batch = order[k * o.batch:(k + 1) * o.batch]
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, o.warmup_epochs * per_epoch, o.lr, o.min_lr)
            optimizer.zero_grad(set_to_none=True)
            for rank, part in enumerate(np.array_split(batch, o.halves)):
                for norm, momentum in zip(norms, momenta):
                    norm.momentum = momentum if rank == 0 else 0.0
                x = to_tensor(crop_and_flip(images[part], random))
                with autocast:
                    loss = F.cross_entropy(model(x).float(), torch.from_numpy(labels[part]),
                                           label_smoothing=o.label_smoothing)
                (loss * (len(part) / len(batch))).backward()
                losses.append(loss.item())
            if o.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            step += 1
        model.eval()
        total, right = 0.0, 0
        with torch.no_grad(), autocast:
            for at in range(0, len(test_images), 250):
                y = torch.from_numpy(test_labels[at:at + 250])
                logits = model(to_tensor(test_images[at:at + 250])).float()
                total += F.cross_entropy(logits, y, reduction="sum").item()
                right += (logits.argmax(1) == y).sum().item()
        print(json.dumps({"epoch": epoch, "train_loss": float(np.mean(losses)), "val_loss": total / len(test_images),
                          "top1": right / len(test_images), "seconds": round(time.time() - began, 1)}), flush=True)
    print(json.dumps({"settings": vars(o), "torch": torch.__version__, "torchvision": torchvision.__version__,
                      "timm": timm.__version__}))


if __name__ == "__main__":
    main()
