# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Your network, your data
#
# Any `nn.Module` can be trained, and any arrays or tensors. Here the task is to tell odd digits from even ones, with words for labels.

# %%
import numpy as np
from torch import nn

import fedpm

digits = fedpm.load_dataset("digits")
words = np.array(["even", "odd"])
data = fedpm.dataset(
    train=(digits.train.x, words[digits.train.y % 2]),
    test=(digits.test.x, words[digits.test.y % 2]),
)
print(data.classes, data.train.x.shape)

# %% [markdown]
# ## What becomes of each parameter
#
# A parameter is one of three kinds. *Masked*: its values are random and frozen, and the mask says which count. *Trained*: a small part that a mask
# does not suit, such as the scale of a norm layer; it travels as floats. *Frozen*: it keeps the value it has. `MaskedNetwork` shows what would
# happen.

# %%
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.GroupNorm(4, 16),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 4 * 4, 64),
    nn.ReLU(),
    nn.Linear(64, 2),
)
network = fedpm.MaskedNetwork(net)
print("masked ", [part.name for part in network.parts])
print("trained", list(network.trained))

# %% [markdown]
# ## Train
#
# The first argument says what to start from; keywords change it. A table of settings is a mapping. With data of your own, start from `"quickstart"`
# and set `effort` to `"rounds"`, as here: each round teaches as much as it can. The preset's own effort, `"bits"`, sends about half the bytes and
# needs more rounds: on this task it takes six or seven to get where `"rounds"` is after two. Go back to it when bytes are what counts.
#
# `on_round` sees each round as it ends. With `out="runs/own"` the run would also leave a folder, from which `fedpm.resume("runs/own", net=net,
# data=data)` goes on if it is killed.

# %%
result = fedpm.run(
    "quickstart",
    net=net,
    data=data,
    rounds=8,
    clients={"total": 5},
    local={"epochs": 4},
    fedpm={"effort": "rounds"},
    progress=False,
    on_round=lambda r: print(f"round {r['round']}: {r['accuracy']:.3f}"),
)

# %% [markdown]
# ## Share it
#
# A model file of a network of your own is loaded with the network's class; its weights may be anything, they come from the file's seed.

# %%
result.file.save("odd-or-even.fedpm")
model = fedpm.load("odd-or-even.fedpm", net=net)
parameters = sum(parameter.numel() for parameter in model.parameters())
print(parameters, "parameters,", len(result.file.to_bytes()), "bytes")

# %% [markdown]
# More: [networks](../networks.md), [data](../data.md), [callbacks, best round, early stopping](../control.md). If accuracy stays at chance:
# [my run does not learn](../howto/chance.md). Next: [a federation of hospitals](hospitals.py).
