"""Make docs/figures/mask-data.js, which docs/method.md shows in motion: python docs/hooks/animation.py."""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from torch import nn

import fedpm
from fedpm.rng import Streams

CLIENTS, HIDDEN, ROUNDS = 10, 32, 20
net = nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
frames = []


def look(round: fedpm.Round) -> None:
    """Take θ of the first layer, in tenths, as the server has it after a round."""
    ones = load_file(Path(folder) / "run/checkpoint/state.safetensors")["ones"][: 64 * HIDDEN]
    frames.append(
        {
            "theta": "".join("0123456789a"[int(one)] for one in ones),
            "accuracy": round_to(round["accuracy"]),
            "bytes": round["uplink_bytes"] + round["downlink_bytes"],
        }
    )


def round_to(value: float) -> float:
    """Return three digits."""
    return float(f"{value:.3f}")


with tempfile.TemporaryDirectory() as folder:
    settings = {"clients": {"total": CLIENTS}, "local": {"epochs": 5, "batch_size": 32}, "rounds": ROUNDS}
    given = {"net": net, "data": fedpm.load_dataset("digits"), "on_round": look, "progress": False}
    fedpm.run("quickstart", fedpm={"effort": "rounds"}, out=f"{folder}/run", **settings, **given)

network = fedpm.MaskedNetwork(net, init="half")
signs = "".join("+-"[int(weight < 0)] for weight in network.weights(0)[: 64 * HIDDEN].numpy())
start = "".join("0a"[int(level >= 128)] for level in Streams(0).uint8("initial scores", 64 * HIDDEN))
frames.insert(0, {"theta": start, "accuracy": None, "bytes": 0})
data = {"signs": signs, "units": HIDDEN, "dense": 4 * network.size * CLIENTS * 2, "frames": frames}
assert np.all([len(frame["theta"]) == len(signs) for frame in frames])
(Path(__file__).parents[1] / "figures/mask-data.js").write_text(f"const MASK = {json.dumps(data)};\n")
print(frames[-1]["accuracy"], sum(frame["bytes"] for frame in frames))
