# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A federation of hospitals
#
# In a real federation nobody splits data: they are where they are. Three places have different numbers of examples and different classes. (The digits
# stand in for scans.)

# %%
import numpy as np
from torch import nn

import fedpm

digits = fedpm.load_dataset("digits")
x, y = digits.train.x, digits.train.y
low, high = np.flatnonzero(y < 6), np.flatnonzero(y > 3)
places = {
    "oslo": (x[low[::2]], y[low[::2]]),  # 0 to 5, about 400 examples
    "bergen": (x[high[:250]], y[high[:250]]),  # 4 to 9
    "voss": (x[1200:1300], y[1200:1300]),  # a little of everything
}
data = fedpm.federation(places, test=(digits.test.x, digits.test.y))
print({name: len(labels) for name, (_, labels) in places.items()})

# %% [markdown]
# ## Train
#
# Who lacks classes unlearns them, in every method: local training pulls the network towards what it sees. `logit_adjustment` tells the local loss
# which classes a place lacks (nothing of it is sent), and `effort = "balanced"` remembers earlier rounds longer.

# %%
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
result = fedpm.run(
    "quickstart",
    net=net,
    data=data,
    rounds=15,
    local={"epochs": 4, "batch_size": 32, "logit_adjustment": 0.3},
    fedpm={"effort": "balanced"},
    progress=False,
)
print(result.rounds[0]["names"])
for record in result.rounds[::5] + result.rounds[-1:]:
    print(f"round {record['round']:2}: accuracy {record['accuracy']:.3f}")

# %% [markdown]
# ## The same on the command line
#
# A table with a column of places, or a folder for each: `data.split = "given"` ([data](../data.md)).
#
# Next: [a pretrained network](pretrained.py), or [a fleet](fleet.md), where each place keeps its data on its own machine.
