#!/usr/bin/env python3
"""Reads a checkpoint by docs/checkpoint-format.md alone: whether that page suffices.

    python3 read_checkpoint.py out/step-00000123    (needs xxhash)

Prints each tensor's name, dtype, shape and bytes, and each value, as lines of JSON."""
import itertools, json, math, mmap, os, struct, sys
from xxhash import xxh3_64_intdigest as xxh3
SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "bool": 1}
PIECE = 4 << 20
def require(holds, what):
    if not holds: sys.exit(f"damaged: {what}")
def once(pairs):
    require(len(dict(pairs)) == len(pairs), "a member is there twice")
    return dict(pairs)
def parse(text): return json.loads(text.decode(), object_pairs_hook=once)
def up(offset, alignment): return -(-offset // alignment) * alignment
def read_file(path, entry):
    with open(path, "rb") as file: data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, version, features, zero, xxh = struct.unpack("<8sII40sQ", data[:64])
    require(magic == b"\x89LSCK\r\n\x1a" and xxh == xxh3(data[:56]) and not any(zero), "header")
    require(version == 1 and features < 4, "version or features")
    at, length, index_xxh, size, zero, xxh, magic = struct.unpack("<4Q16sQ8s", data[-64:])
    require(magic == b"LSCKEND\n" and xxh == xxh3(data[-64:-16]) and not any(zero), "footer")
    require(at + length + 64 == size == len(data) == entry["bytes"], "size")
    require(index_xxh == xxh3(data[at:at + length]) == int(entry["index_xxh3"], 16), "index")
    index, end = parse(data[at:at + length]), 64
    for t in index["tensors"]:
        place = up(end, 4096 if t["bytes"] >= 65536 else 256)
        require(t["offset"] == place and not any(data[end:place]), f"place of {t['name']}")
        end, t["data"] = place + t["bytes"], data[place:place + t["bytes"]]
        t["first"], count = t.get("range", (0, math.prod(t["shape"])))
        sums = [f"{xxh3(t['data'][i:i + PIECE]):016x}" for i in range(0, t["bytes"], PIECE)]
        require(t["bytes"] == count * SIZES[t["dtype"]] and t["xxh3"] == sums, t["name"])
    require(at == up(end, 256) and not any(data[end:at]), "place of the index")
    return index

def read_checkpoint(folder):
    text = open(os.path.join(folder, "manifest.json"), "rb").read()
    require(text[-28:] == b',"xxh3":"%016x"}\n' % xxh3(text[:-28]), "manifest")
    m, tensors, views, values = parse(text), {}, [], []
    require(m["format"] == "lockstep-checkpoint" and m["version"] == 1, "format or version")
    require(set(m["features"]) <= {"sharded"}, "features")
    for i, entry in enumerate(m["files"]):
        index = read_file(os.path.join(folder, f"data-{i:05d}.lsck"), entry)
        for t in index["tensors"]: tensors.setdefault(t["name"], []).append(t)
        views, values = views + index.get("views", []), values + index["values"]
    for name, parts in tensors.items():
        data = b"".join(t["data"] for t in sorted(parts, key=lambda t: t["first"]))
        tensors[name] = parts[0]["dtype"], parts[0]["shape"], data
        require(len(data) == math.prod(parts[0]["shape"]) * SIZES[parts[0]["dtype"]], name)
    for v in views:
        (dtype, _, data), axes = tensors[v["of"]], zip(v["shape"], v["strides"])
        steps = itertools.product(*([i * stride for i in range(n)] for n, stride in axes))
        places = ((v["start"] + sum(s)) * SIZES[dtype] for s in steps)
        tensors[v["name"]] = dtype, v["shape"], b"".join(data[p:p + SIZES[dtype]] for p in places)
    for name, (dtype, shape, data) in tensors.items():
        if name[0] != "/": print(json.dumps([name, dtype, shape, data.hex()]))
    for v in values: print(json.dumps([v["name"], v["type"], v["value"]]))
read_checkpoint(sys.argv[1])
