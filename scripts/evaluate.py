"""Loss, perplexity and bits per byte of a run's model, on what it was not trained on.

python scripts/evaluate.py run=last
python scripts/evaluate.py run=last data=text data.files=book.txt
python scripts/evaluate.py run=last data=hub data.dataset=roneneldan/TinyStories data.split=validation
"""

import sys

from minillm.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
