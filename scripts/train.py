"""Train a small Llama; the implementation of its norm is a choice.

python scripts/train.py norm=triton
python scripts/train.py experiment=norm_110m norm=triton
python scripts/train.py -m norm=eager,triton
"""

from minillm.cli import main

if __name__ == "__main__":
    main()
