#!/usr/bin/env python3
"""Writes files/: what the safetensors and NumPy packages save, for the tests of our readers.

    python3 make_files.py       (made with numpy 2.4.6, safetensors 0.8.0 and torch 2.15)

With paths as arguments it instead reads files that Lockstep wrote, by the same packages, and holds
their values to the formula: python3 make_files.py model.safetensors arrays.npz array.npy

Values are number(k, i), a formula that tests/nn/foreign_files.h has too.
"""

import math
import os
import sys

import numpy as np
import safetensors.numpy

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")


def array(k, dtype, *shape):
    """Whole numbers and eighths, exact in every dtype."""
    whole = [(i * 37 + k * 11) % 101 - 50 for i in range(math.prod(shape))]
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        whole = [n % 2 == 0 for n in whole]
    elif dtype.kind == "f":
        whole = [n / 8 for n in whole]
    elif dtype.kind == "u":
        whole = [n + 50 for n in whole]
    return np.array(whole, dtype).reshape(shape)


ARRAYS = {
    "fc.weight": array(1, "f4", 3, 5), "fc.bias": array(2, "f4", 3),
    "half": array(3, "f2", 7), "double": array(4, "f8", 2, 1, 3), "flags": array(5, "?", 5),
    "bytes": array(6, "u1", 3, 3), "small": array(7, "i1", 9), "int": array(8, "i4", 4),
    "count": array(9, "i8"), "none": array(10, "f4", 0, 4),
}


def write():
    import safetensors.torch
    import torch
    os.makedirs(FOLDER, exist_ok=True)
    os.chdir(FOLDER)
    safetensors.numpy.save_file(ARRAYS, "arrays.safetensors", metadata={"format": "np"})
    # A state dict as PyTorch leaves it: names with the "module." of its wrappers, and the count
    # that its BatchNorm keeps.
    layers = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    model = torch.nn.DataParallel(layers)
    for k, (name, tensor) in enumerate(model.state_dict().items(), start=1):
        dtype = "i8" if name.endswith("num_batches_tracked") else "f4"
        tensor.copy_(torch.from_numpy(array(k, dtype, *tensor.shape)))
    safetensors.torch.save_file(model.state_dict(), "ddp.safetensors", metadata={"format": "pt"})
    safetensors.numpy.save_file({"x": array(1, "u2", 3), "y": array(2, "f4", 2)},
                                "u16.safetensors")
    np.savez("arrays.npz", **ARRAYS)
    np.savez_compressed("compressed.npz", big=array(11, "f4", 300, 7), **ARRAYS)
    for name in ("fc.weight", "flags", "count", "none"):
        np.save(f"{name}.npy", ARRAYS[name])
    np.save("fortran.npy", np.asfortranarray(array(12, "f4", 3, 5, 2)))
    for version in ((2, 0), (3, 0)):
        with open(f"version{version[0]}.npy", "wb") as file:
            np.lib.format.write_array(file, ARRAYS["double"], version=version)
    np.save("big_endian.npy", array(1, ">f4", 3))
    np.save("objects.npy", np.array([{}, 1], object), allow_pickle=True)
    np.save("records.npy", np.zeros(2, [("a", "f4"), ("ü", "i4")]))


def check(path):
    if path.endswith(".safetensors"):
        found = safetensors.numpy.load_file(path)
    elif path.endswith(".npz"):
        found = dict(np.load(path))
    else:
        found = {os.path.basename(path)[:-4]: np.load(path)}
    for name, value in found.items():
        want = ARRAYS[name]
        assert value.dtype == want.dtype and value.shape == want.shape, (path, name, value.dtype)
        assert np.array_equal(value, want), (path, name)
    if not path.endswith(".npy"):
        assert set(found) == set(ARRAYS), (path, set(found) ^ set(ARRAYS))
    print(f"{path}: {len(found)} arrays as they should be")


if len(sys.argv) == 1:
    write()
for argument in sys.argv[1:]:
    check(argument)
