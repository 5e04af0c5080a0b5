"""Compare variants of a training run: which is faster, with what certainty, and is training still the same?

python scripts/compare.py norm=eager,triton
python scripts/compare.py experiment=norm_110m norm=eager,torch,triton compare.minutes=20
python scripts/compare.py layers=each
"""

import sys

from minillm.compare.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
