"""The mask coders by name."""

from fedpm.codec.masks import Frequency, MaskCoder, SharedRandomness, SideInformation
from fedpm.codec.relative import RelativeEntropy

CODERS: dict[str, tuple[int, MaskCoder]] = {
    "frequency": (1, Frequency()),
    "side-information": (2, SideInformation()),
    "shared-randomness": (3, SharedRandomness()),
    "relative-entropy": (6, RelativeEntropy()),
}
"""Each coder with its number on the wire; what one was configured with is in its messages, and any reads them."""
