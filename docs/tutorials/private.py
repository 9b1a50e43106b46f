# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Privacy
#
# A mask is a sample, and a sample hides something. How much, depends on how far one example can move it. With `privacy.unit = "example"`, gradients
# are clipped and noise is added. Then all that is ever sent tells hardly more about any single example than a number ε allows: the smaller, the less. ε is
# a budget that you set for the whole run. (`pip install '.[privacy]'`)

# %%
import fedpm

result = fedpm.run(
    "quickstart",
    model={"name": "conv4-slim"},
    rounds=2,
    local={"epochs": 1},
    privacy={"unit": "example", "epsilon": 8},
    progress=False,
)
for record in result.rounds:
    print(f"accuracy {record['accuracy']:.3f}, ε spent {record['epsilon']:.2f}")

# %% [markdown]
# Two rounds with 144 examples at each of ten clients are too few to learn much privately: noise that hides one example in 144 hides a lot of what
# they have in common too. With more examples at each client the same ε costs less. [Privacy](../privacy.md) has the measurements, says who is
# protected from whom, and what is not promised. Next: [a fleet](fleet.md).
