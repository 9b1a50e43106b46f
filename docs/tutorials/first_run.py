# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # First run
#
# Ten clients hold handwritten digits. They agree on *which* weights of a random network to keep. No weight is ever sent.
#
# `fedpm.run` takes a preset and any settings on top of it. The preset `quickstart` has the data inside the package. Here the network is a smaller
# one, `conv4-slim`. The `effort` says what to spare: with `"rounds"` each round teaches as much as it can, while the preset's own, `"bits"`, spares
# bytes.

# %%
import fedpm

result = fedpm.run(
    "quickstart",
    model={"name": "conv4-slim"},
    local={"epochs": 4},
    rounds=5,
    fedpm={"effort": "rounds"},
    progress=False,
)
print(f"accuracy {result.summary['accuracy']:.3f}")

# %% [markdown]
# ## What was sent
#
# Every round has a record. `uplink_bytes` and `downlink_bytes` are lengths of messages that were really encoded; `uplink_bpp` is the same in bits
# per parameter and client. Weights would cost 32.

# %%
for record in result.rounds:
    accuracy, up, down = (record[key] for key in ("accuracy", "uplink_bpp", "downlink_bpp"))
    print(f"{record['round']}: {accuracy:.3f}, up {up:.3f}, down {down:.3f} bpp")

# %%
import matplotlib.pyplot as plt
import numpy as np

rounds = result.rounds
sent = np.cumsum([each["uplink_bytes"] + each["downlink_bytes"] for each in rounds])
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(sent / 1e3, [each["accuracy"] for each in rounds], marker="o")
axes.set(xlabel="kB sent by all, both ways", ylabel="test accuracy")
axes.grid(alpha=0.3)
figure.tight_layout()
figure.savefig("accuracy.png")  # a notebook shows it; for Python alone, here it is

# %% [markdown]
# Had weights been sent instead, every client would have got them and sent them back in every round, 4 bytes each:

# %%
parameters, clients = result.summary["parameters"], 10
weights = 4 * parameters * clients * 2 * len(rounds)
print(f"masks:   {sent[-1] / 1e3:>8,.0f} kB, all clients, both ways, all rounds")
print(f"weights: {weights / 1e3:>8,.0f} kB, {weights / sent[-1]:.0f} times as many")

# %% [markdown]
# ## The model is a seed and a mask
#
# The file holds the seed of the frozen weights and a coded mask. Whoever opens it gets an ordinary `nn.Module`.

# %%
from pathlib import Path

import torch

result.file.save("model.fedpm")
print(f"{Path('model.fedpm').stat().st_size / 1e3:.1f} kB")

model = fedpm.load("model.fedpm")
digits = fedpm.load_dataset("digits")
x = torch.from_numpy(digits.test.x[:5]).float()
print("predicted", model(x).argmax(1).tolist())
print("true     ", digits.test.y[:5].tolist())

# %% [markdown]
# ## On the command line
#
# ```
# fedpm run --preset quickstart --set rounds=8 --out runs/first
# fedpm model inspect runs/first
# fedpm report runs/first --open
# ```
#
# Next: [your network, your data](own_network.py).
