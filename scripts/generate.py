"""Continue a prompt, taken byte for byte, with a run's model.

python scripts/generate.py run=last prompt='def f(x, y=1): '
python scripts/generate.py run=last temperature=0 < prompt.txt
python scripts/generate.py run=last prompt=import layers=triton top_k=50 seed=1
"""

import sys

from minillm.commands.generate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
