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
    "oslo": (x[low[::2]], y[low[::2]]),  # 0 to 5
    "bergen": (x[high[:250]], y[high[:250]]),  # 4 to 9
    "voss": (x[1200:1300], y[1200:1300]),  # a little of everything
}
data = fedpm.federation(places, test=(digits.test.x, digits.test.y))
print({name: len(labels) for name, (_, labels) in places.items()})

# %% [markdown]
# ## Train
#
# A mask needs a wider network than weights do, so there are 512 hidden units. `effort = "rounds"` takes large steps at first and smaller ones later.
# The preset's own, `bits`, needs about a third of the bytes here. But it starts slowly. And its steps stay as large as
# they were: the mean of only three masks is noisy, so its accuracy swings by some hundredths to the end.

# %%


def train(adjustment=0.0, discount=0.0):
    """Train a network of 512 hidden units in all places."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    return fedpm.run(
        "quickstart",
        net=net,
        data=data,
        rounds=12,
        local={"epochs": 4, "batch_size": 32, "logit_adjustment": adjustment},
        aggregation={"discount": discount},
        fedpm={"effort": "rounds"},
        progress=False,
    )


result = train()
print(result.rounds[0]["names"])
print([round(record["accuracy"], 3) for record in result.rounds])

# %% [markdown]
# ## When places lack classes
#
# A client that lacks classes unlearns them, in every method: local training pulls the network towards what it sees. Two settings work against it.
# `logit_adjustment` tells the local loss how rare each class is at the place (nothing of it is sent). `discount` keeps a part of what
# the masks of earlier rounds said, so that a round forgets less. With and without them:

# %%
runs = {
    "neither": result,
    "logit_adjustment": train(adjustment=0.3),
    "and discount": train(adjustment=0.3, discount=0.5),
}
for name, run in runs.items():
    scores = [record["accuracy"] for record in run.rounds]
    print(f"{name:16}: round 1 {scores[0]:.3f}, last five {np.mean(scores[-5:]):.3f}")

# %% [markdown]
# Compare means of some rounds: there are 359 test images, so a hundredth is four of them, and that much is chance. `logit_adjustment` helps in the
# first round; later the difference is chance. `discount` brings nothing here: voss has all classes and the others six each, and who remembers
# longer learns more slowly. It is for harder splits. With ten places of two digits each, and a convolutional network, the mean accuracy of rounds 16
# to 20 is 0.89 with neither setting, 0.94 with the first, 0.93 with the second and 0.96 with both (seed 0, half a minute each):
#
# ```
# fedpm run --preset quickstart --set model.name=conv4-slim --set data.split=classes --set data.classes_per_client=2 \
#     --set fedpm.effort=rounds --set aggregation.discount=0.5 --set local.logit_adjustment=0.3
# ```
#
# So try them, and keep what helps on your validation data. [What a round forgets](../start.md#what-a-round-forgets) has more.
#
# ## The same on the command line
#
# The data are a file of arrays with one more, `client`, that names the place of each example. `data.split=given` leaves every place what is its own.

# %%
np.savez(
    "places.npz",
    x=np.concatenate([inputs for inputs, _ in places.values()]),
    y=np.concatenate([labels for _, labels in places.values()]),
    client=np.repeat(list(places), [len(labels) for _, labels in places.values()]),
)

# %% [markdown]
# ```
# fedpm run --set data.name=folder --set data.path=places.npz --set data.split=given \
#     --set model.name=mlp --set local.logit_adjustment=0.3
# ```
#
# A table with a column `client` or a folder for each place will do as well ([data](../data.md)). Here a tenth of each place's examples is tested on.
#
# Next: [a pretrained network](pretrained.py), or [a fleet](fleet.md), where each place keeps its data on its own machine.
