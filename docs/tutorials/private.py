# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Privacy
#
# A mask is a sample, and a sample hides something. How much depends on how far one example can move it. With `privacy.unit = "example"`, gradients
# are clipped and noise is added. Then all that is ever sent tells hardly more about any single example than a number ε allows: the smaller, the less.
# ε is a budget that you set for the whole run. 8, as here, is weak: strong promises begin around 1, and cost more accuracy. It needs the extra
# `privacy`: in your clone, `pip install -c constraints.txt -e '.[privacy]'`.

# %%
from torch import nn

import fedpm

digits = fedpm.load_dataset("digits")


def private(clients):
    """Train with a budget of ε = 8."""
    norm = nn.LayerNorm(128, elementwise_affine=False)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), norm, nn.Linear(128, 10))
    return fedpm.run(
        "quickstart",
        net=net,
        data=digits,
        clients={"total": clients},
        rounds=10,
        local={"epochs": 5},
        privacy={"unit": "example", "epsilon": 8},
        progress=False,
    )


for record in private(clients=2).rounds:
    print(f"accuracy {record['accuracy']:.3f}, ε spent {record['epsilon']:.2f}")

# %% [markdown]
# Two clients with some 650 examples each learn most of it: without privacy they reach 0.95. The network is shallow on purpose, with tanh and a norm
# layer: where the inputs of a layer lie around zero, less is lost to noise.
#
# Now the same examples at ten clients, some 130 each:

# %%
print(f"accuracy {private(clients=10).rounds[-1]['accuracy']:.3f}")

# %% [markdown]
# Noise that hides one example in 130 hides a lot of what they have in common too. With more examples at each client the same ε costs less.
# [Privacy](../privacy.md) has the measurements, says who is protected from whom, and what is not promised. Next: [a fleet](fleet.md).
