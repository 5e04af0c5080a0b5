"""minillm: a mini LLM training framework in which the implementation of a layer is a config choice.

Where things are:

    the command     cli compose config combinations problems errors output torchrun commands/
    a run           train build trainer module optim optim_bf16 callbacks/ header summary csv_log wandb_log
    the model       model layers/ apply attention kv_cache flops memory
    the text        data/
    the machine     hardware requirements nvidia_smi failures
    several GPUs    distributed ranks sharded
    what survives   checkpoint resume whole folders signals
    a trained model loaded generate evaluate hf init_from
    measuring       bench/ compare/ explain/ waterfall/
"""

import kernels  # first: where no GPU is usable it switches Triton's interpreter on, before lightning imports triton

if not hasattr(kernels, "operator"):
    raise ImportError(
        f"{kernels.__file__} is another package named kernels (Hugging Face publishes one), not minillm's: "
        "pip uninstall kernels, or put the repository first on PYTHONPATH"
    )
