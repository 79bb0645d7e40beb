"""Times reading, decoding and augmenting a tar of labelled images in PyTorch's DataLoader: the peer of loader_bench.

Pillow decodes; torchvision crops, resizes, mirrors and normalises; timm does RandAugment. The files' bytes are kept in
memory. Take a magnitude below 10 without mstd: with others timm 1.0 may ask for no bits at all, which Pillow 13 refuses.
Prints a JSON object: the median of the epochs in images per second, each of them, and the versions.

  python torch_loader.py --data=beans.tar [--auto_augment=rand-m9-inc1] [--workers=1] [--cpu_time=1]
"""

import argparse
import io
import json
import resource
import statistics
import tarfile
import time

import PIL
import timm
import torch
import torchvision
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from torchvision import transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TarImages(torch.utils.data.Dataset):
    """Members train/CLASS/NAME.jpg."""

    def __init__(self, path, transform):
        self.transform = transform
        with tarfile.open(path) as tar:
            members = [m for m in tar if m.isfile() and "train/" in m.name and m.name.lower().endswith((".jpg", ".jpeg", ".png"))]
            self.files = [(tar.extractfile(m).read(), m.name.split("/")[-2]) for m in members]
        names = sorted({name for _, name in self.files})
        self.labels = [names.index(name) for _, name in self.files]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.transform(Image.open(io.BytesIO(self.files[i][0])).convert("RGB")), self.labels[i]


def seconds(cpu_time):
    """Processor time of this process and of its workers that have ended, or wall time."""
    if not cpu_time:
        return time.perf_counter()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--auto_augment", default="")
    parser.add_argument("--interpolation", choices=["bilinear", "bicubic"], default="bilinear")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cpu_time", type=int, default=0)
    a = parser.parse_args()

    torch.set_num_threads(1)
    steps = [transforms.RandomResizedCrop(a.image_size, interpolation=transforms.InterpolationMode(a.interpolation)),
             transforms.RandomHorizontalFlip()]
    if a.auto_augment:
        fill = tuple(round(255 * x) for x in MEAN)
        filter_ = getattr(Image.Resampling, a.interpolation.upper())
        steps.append(rand_augment_transform(a.auto_augment, {"img_mean": fill, "interpolation": filter_}))
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = TarImages(a.data, transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(dataset, a.batch, shuffle=True, drop_last=True, num_workers=a.workers)
    rates = []
    for epoch in range(a.epochs + 1):
        began, images = seconds(a.cpu_time), 0
        for batch, _ in loader:
            images += len(batch)
        if epoch > 0:
            rates.append(images / (seconds(a.cpu_time) - began))
    print(json.dumps({"images_per_s": round(statistics.median(rates), 1), "epochs": [round(r, 1) for r in rates],
                      "torch": torch.__version__, "torchvision": torchvision.__version__, "Pillow": PIL.__version__,
                      "timm": timm.__version__}))


if __name__ == "__main__":
    main()
