"""Training and evaluation of a model, whatever its task."""

import logging

# bitsandbytes logs at its import which CPU kernels are missing, and in 8 bits a cast per product.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
