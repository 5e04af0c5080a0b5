"""Explain why an implementation of a layer is faster: what it launches, moves and keeps.

python scripts/explain.py norm=textbook,eager,triton_simple,triton shape=2x3x512
python scripts/explain.py experiment=norm_110m norm=eager,torch,compiled,triton
python scripts/explain.py model=1b mlp=eager,triton
"""

import os
import sys

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # read at the import: without a GPU kernels are compiled here, and not run
    from minillm.explain.cli import main

    sys.exit(main(sys.argv[1:]))
