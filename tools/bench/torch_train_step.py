"""Times a training step of a model in PyTorch: forward, loss, backward, update.

As PyTorch does best: f32 or bf16 autocast, fused scaled-dot-product attention, channels_last (channels_last_3d)
inputs and weights, and of the fused and the foreach optimizer the one that a short trial finds quicker. ViTs are
torch_models.VisionTransformer, which equals timm's, and the 3-D U-Net is record_unet3d.UNet3d, which equals ours: those
need torch and numpy only; Swins are timm's, resnet18 and resnet50 are torchvision's. Losses and optimizers are those
of our recipes: cross entropy with AdamW, for ResNets with SGD; BCE-Dice with Adam. Prints one JSON object: median and
all samples in ms per step (each waited for), samples/s, peak resident memory in MiB, the part of it that importing
torch alone takes (a CUDA build's is large), with --device=cuda the GPU and its peak memory, and the versions.

  python torch_train_step.py --model=vit_small --batch=8 --dtype=f32 --threads=2 [--compile] [--steps=10]
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

UNET3D = dict(width=32, depth=4, extent=64)  # width of the first level, levels, voxels in each direction


def build(name):
    """The model, and what makes its optimizer from options (fused, foreach)."""
    if name == "unet3d":
        from record_unet3d import UNet3d

        model = UNet3d(False, UNET3D["width"], UNET3D["depth"], 1).to(memory_format=torch.channels_last_3d)
        return model, lambda **o: torch.optim.Adam(model.parameters(), 2e-4, weight_decay=1e-4, **o)
    if name.startswith("resnet"):
        import torchvision

        model = torchvision.models.get_model(name, weights=None).to(memory_format=torch.channels_last)
        return model, lambda **o: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, **o)
    if name.startswith("swin"):
        import timm

        model = timm.create_model(name + "_patch4_window7_224", drop_path_rate=0.5 if name == "swin_base" else 0.2)
    else:
        model = formula_weights(VisionTransformer(**VIT[name + "_patch16_224"]))
    model = model.to(memory_format=torch.channels_last)
    return model, lambda **o: adamw(model, 1e-3, 0.05, **o)


def quickest(make_optimizer, model):
    """The implementation of the optimizer whose update takes least time on this model, and its name."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    wait = torch.cuda.synchronize if next(model.parameters()).is_cuda else lambda: None
    times = {}
    for name in ("fused", "foreach"):
        optimizer = make_optimizer(**{name: True})
        optimizer.step()
        wait()
        samples = []
        for _ in range(3):
            began = time.perf_counter()
            optimizer.step()
            wait()
            samples.append(time.perf_counter() - began)
        times[name] = min(samples)
        optimizer.state.clear()
    name = min(times, key=times.get)
    model.zero_grad()
    return make_optimizer(**{name: True}), name


def bce_dice(logits, targets):
    p = logits.sigmoid()
    dice = 2 * (p * targets).sum() / (p + targets).sum().clamp_min(1e-5)
    return F.binary_cross_entropy_with_logits(logits, targets) + 1 - dice


def batch_of(name, samples):
    """Inputs, targets and the loss of both."""
    if name == "unet3d":
        volumes = torch.randn(samples, 1, *[UNET3D["extent"]] * 3).contiguous(memory_format=torch.channels_last_3d)
        return volumes, (torch.randn_like(volumes) > 1).float(), bce_dice
    images = torch.rand(samples, 3, 224, 224).mul(2).sub(1).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(0, 1000, (samples,)), F.cross_entropy


def peak_rss_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main():
    imported = peak_rss_mib()
    vits = [name.removesuffix("_patch16_224") for name in sorted(VIT)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=vits + ["swin_tiny", "swin_base", "resnet18", "resnet50", "unet3d"], default="vit_small")
    parser.add_argument("--batch", type=int, default=8, help="samples per step")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16 is autocast over f32 weights")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(42)
    model, make_optimizer = build(a.model)
    model.to(a.device)
    torch.backends.cudnn.benchmark = True  # algorithms of convolutions measured
    optimizer, kind = quickest(make_optimizer, model)
    forward = torch.compile(model) if a.compile else model
    inputs, targets, loss_of = batch_of(a.model, a.batch)
    inputs, targets = inputs.to(a.device), targets.to(a.device)

    def step():
        half = torch.autocast(a.device, torch.bfloat16) if a.dtype == "bf16" else contextlib.nullcontext()
        with half:
            loss = loss_of(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    began = time.perf_counter()
    losses, samples = [step().item()], []
    first_step_ms = 1e3 * (time.perf_counter() - began)
    losses += [step().item() for _ in range(a.warmup - 1)]
    if a.device == "cuda":
        # From the end of one step to the end of the next: the host is a step ahead, as in a loop that logs now and then.
        torch.cuda.reset_peak_memory_stats()
        began, kept, before = time.perf_counter(), [], None
        for i in range(a.steps + 2):  # one more, before those that count
            event = torch.cuda.Event()
            if i <= a.steps:
                kept.append(step())
                event.record()
            if before is not None:
                before.synchronize()
                now = time.perf_counter()
                samples.append(1e3 * (now - began))
                began = now
            before = event
        samples = samples[1:]
        losses += [loss.item() for loss in kept]
    else:
        for _ in range(a.steps):
            began = time.perf_counter()
            losses.append(step().item())
            samples.append(1e3 * (time.perf_counter() - began))
    median = statistics.median(samples)
    gpu = {}
    if a.device == "cuda":
        gpu = {"gpu": torch.cuda.get_device_name(), "peak_gpu_mib": torch.cuda.max_memory_allocated() >> 20}
    print(
        json.dumps(
            {
                "engine": "torch compile" if a.compile else "torch eager",
                "model": a.model,
                "batch": a.batch,
                "dtype": a.dtype,
                "threads": a.threads,
                "optimizer": kind,
                "ms_per_step": round(median, 3),
                "samples_per_s": round(1e3 * a.batch / median, 3),
                "peak_rss_mib": peak_rss_mib(),
                "import_rss_mib": imported,
                "first_step_ms": round(first_step_ms, 1),
                **gpu,
                "samples_ms": [round(s, 3) for s in samples],
                "first_loss": losses[0],
                "last_loss": losses[-1],
                "versions": versions(),
            }
        )
    )


if __name__ == "__main__":
    main()
