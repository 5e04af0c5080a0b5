"""A run's model as a folder that Hugging Face's transformers loads as a plain Llama.

python scripts/export.py run=last out=my_llama
python scripts/export.py run=runs/2026-01-31/12-00-00_tiny_eager out=my_llama
"""

import sys

from minillm.commands.export import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
