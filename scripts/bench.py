"""Measure an operator's implementations against each other and against the memory's own speed.

python scripts/bench.py op=rms_norm
python scripts/bench.py op=rms_norm impl=triton_simple block=1024,4096 num_warps=1,4,8 width=1024
python scripts/bench.py op=rms_norm impl=my_package.my_module:MyNorm check=true
python scripts/bench.py op=step model=110m
"""

import sys

from minillm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
