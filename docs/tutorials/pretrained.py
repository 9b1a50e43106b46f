# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A pretrained network
#
# So far the frozen weights were random. They may also be those of a network that already knows something. A mask over them fine-tunes it: it says
# which weights to drop. That costs a fraction of a bit for each weight, and the model file holds no weights at all.
#
# ## A base
#
# Any network with good values will do. Here it is a small one that is trained first, in one place, on the digits 0 to 4 alone.

# %%
import copy

import torch
from torch import nn

import fedpm

digits = fedpm.load_dataset("digits")
x, y = torch.from_numpy(digits.train.x).float(), torch.from_numpy(digits.train.y).long()

torch.manual_seed(0)
base = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Linear(128, 128),
    nn.ReLU(),
    nn.Linear(128, 5),
)
optimiser = torch.optim.Adam(base.parameters(), 0.003)
low = y < 5
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(base(x[low]), y[low]).backward()
    optimiser.step()
print(f"on 0 to 4: {(base(x[low]).argmax(1) == y[low]).float().mean():.3f}")

# %% [markdown]
# ## A new head
#
# The clients have all ten digits, so the last layer is new. Zeros are a good start for it.

# %%
base[5] = nn.Linear(128, 10)
for values in base[5].parameters():
    nn.init.zeros_(values)

# %% [markdown]
# ## Fine-tune it in a federation
#
# `weights="given"` keeps the values that the network has. The head is trained as floats (`trained`); the two layers below are masked. Every weight
# starts with the chance `model.keep` to stay. The default, 0.98, changes little. 0.9 lets a network that is so far from its new task learn faster.

# %%
settings = {
    "rounds": 10,
    "clients": {"total": 5},
    "local": {"epochs": 4, "batch_size": 32, "float_lr": 0.01},
}
given = {"net": base, "weights": "given", "data": digits, "trained": ["5"], "progress": False}

tuned = fedpm.run(
    "quickstart",
    model={"keep": 0.9},
    fedpm={"effort": "rounds"},
    **settings,
    **given,
)
for record in tuned.rounds[::3]:
    print(f"round {record['round']:2}: {record['accuracy']:.3f}")

# %% [markdown]
# ## What it cost
#
# Beside it, ordinary fine-tuning of all weights from the same values (`fedavg`). It gets further, for many times the bytes.

# %%
dense = fedpm.run("quickstart", algorithm="fedavg", **settings, **given)
for name, run in {"masks and head": tuned, "all weights": dense}.items():
    sent = run.summary["uplink_bytes"] + run.summary["downlink_bytes"]
    print(f"{name:14}: accuracy {run.summary['accuracy']:.3f}, {sent / 1e3:6,.0f} kB both ways")

# %% [markdown]
# Most of the bytes of the first row are the floats of the head.
#
# ## Share it
#
# The file has the mask, the head, and the SHA-256 of the base. Whoever opens it needs the same base. Another one is refused.

# %%
tuned.file.save("tuned.fedpm")
model = fedpm.load("tuned.fedpm", net=base)
print(len(tuned.file.to_bytes()), "bytes")

other = copy.deepcopy(base)
nn.init.normal_(other[1].weight)
try:
    fedpm.load("tuned.fedpm", net=other)
except fedpm.FedPMError as error:
    print(error)

# %% [markdown]
# [Fine-tune a pretrained network](../pretrained.md) has the rest: frozen lower layers that run once, a text encoder, masks beside LoRA. Next:
# [privacy](private.py).
