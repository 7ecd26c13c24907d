import logging

# It says at its import which kernels a CPU lacks, and in 8 bits of a cast at every product.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
