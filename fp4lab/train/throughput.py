"""Tokens per second and model FLOP/s utilization (MFU, PaLM paper, arXiv:2204.02311, appendix B).

    MFU = tokens per second * FLOPs per token / (peak FLOP/s of a device * devices)

FLOPs are those of the model, not those spent on emulating a format or on recomputing activations.
The peak is the vendor's dense BF16 number, so that recipes are compared against one yardstick. A
CPU's peak depends on clock and vector width as found at run time: none is assumed.
"""

from __future__ import annotations

import torch

#: Dense BF16 FLOP/s from the data sheets; the first name found in the device's own name counts.
PEAK_FLOPS = (
    ("H200", 989.4e12),
    ("H100 PCIe", 756.0e12),
    ("H100", 989.4e12),
    ("A100", 312.0e12),
    ("B200", 2250.0e12),
)


def peak_flops(device: torch.device) -> float | None:
    """The peak of a known GPU, None for any other device.

    >>> peak_flops(torch.device("cpu")) is None
    True
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS if part in name), None)
