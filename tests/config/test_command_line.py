"""What is typed is read as it was meant, and what is wrong is said at once, a sentence each."""

import pytest

from minillm.cli import checked
from minillm.compose import check, layers_label, read
from minillm.config import LAYERS, Config
from minillm.errors import UserError
from minillm.layers import layer_names

# What was typed, and what the sentence must contain.
WRONG = [
    ("trainer.lrr=1", "trainer.lrr is unknown: did you mean optim.lr?"),
    ("+trainer.lrr=1", "trainer.lrr is unknown: did you mean optim.lr?"),
    ("++trainer.max_step=1", "trainer.max_step is unknown: did you mean trainer.max_steps?"),
    ("lr=1", "lr is unknown: did you mean optim.lr?"),
    ("norms=triton", "norms is unknown: did you mean norm?"),
    ("model.dim=3", "model.dim is unknown: model has name, hidden_size"),
    ("norm=foo", "norm=foo is unknown: choose compiled, custom, eager, textbook, torch, triton, triton_simple"),
    ("norm=tritn", "torch, triton, triton_simple; did you mean norm=triton?"),
    ("model=1B", "1b, 350m, tiny; did you mean model=1b?"),
    ("-m norm=eager,tritn", "did you mean norm=triton?"),
    ("model=7b", "model=7b is unknown: choose 110m, 15m, 1b, 350m, tiny"),
    ("data=web", "data=web is unknown: choose hub, stdlib, synthetic, text"),
    ("optim=sgd", "optim=sgd is unknown: choose adamw"),
    ("trainer=tpu", "trainer=tpu is unknown: choose auto, cpu, ddp, fsdp, gpu"),
    ("logger=csv", "logger=csv is unknown: choose none, wandb"),
    ("experiment=fast", "experiment=fast is unknown: choose fused_110m, fused_1b, norm_110m, norm_1b, norm_small"),
    ("debug=true", "debug=true is unknown: choose fast, overfit, profile"),
    ("init_from=no/such/folder", "init_from=no/such/folder is no folder, and no name on the hub either"),
    ("rope=torch", "rope=torch is unknown: choose eager, triton"),
    ("mlp=fast", "mlp=fast is unknown: choose eager, triton"),
    ("loss=liger", "loss=liger is unknown: choose eager, torch, triton"),
    ("loss.name=liger", "loss.name=liger must be 'eager', 'torch' or 'triton'"),
    ("layers=torch", "layers=torch is unknown: choose eager, triton"),
    ("layers=each", "layers=each compares layers: it is for compare.py"),
    ("layer=triton", "layer is unknown: did you mean layers?"),
    ("trainer.attention=fast", "trainer.attention=fast must be 'auto', 'cudnn' or 'flash'"),
    ("trainer=cpu trainer.attention=cudnn", "trainer.attention=cudnn cannot run here"),
    ("model=null", "model=null is unknown: choose 110m"),
    ("norm=my_package.my_module:MyNorm", "norm=custom norm.name=my_package.my_module:MyNorm"),
    ("norm=custom", "norm.name has no value: type norm.name=my_package.my_module:MyNorm"),
    ("norm=custom norm.name=no_such_module:MyNorm", "no_such_module:MyNorm was not found"),
    ("norm.name=rms", "norm.name=rms is unknown: choose textbook, eager"),
    ("norm=eager,triton", "norm=eager,triton has several values: choose one, or type -m"),
    ("trainer.max_steps=abc", "trainer.max_steps=abc must be a valid integer"),
    ("trainer.max_steps=1.5", "trainer.max_steps=1.5 must be a valid integer"),
    ("trainer.max_steps=null", "trainer.max_steps=null must be a valid integer"),
    ("model.norm_eps=", "model.norm_eps= must be a valid number"),
    ("batch.micro=0", "batch.micro=0 must be greater than or equal to 1"),
    ("optim.beta2=1.5", "optim.beta2=1.5 must be less than 1"),
    ("compile=yes", "compile=yes must be a valid boolean"),
    ("seed=-1", "seed=-1 must be greater than or equal to 0"),
    (
        "trainer.precision=fp8",
        "trainer.precision=fp8 must be 'auto', '32-true', '16-mixed', 'bf16-mixed' or 'bf16-true'",
    ),
    ("checkpoint.every_minutes=0", "checkpoint.every_minutes=0 must be greater than 0 or null"),
    ("~trainer.devices", "trainer.devices has no value: type trainer.devices=VALUE"),
    ("trainer.max_steps", "trainer.max_steps is not understood: type key=value"),
    ("trainer.max_steps=(1", "trainer.max_steps=(1 cannot be read"),
    ("trainer.max_steps=${no.such}", "trainer.max_steps: Interpolation key 'no.such' not found"),
    ("--max_steps 3", "--max_steps is no option: values are typed as key=value"),
    ("model.num_heads=3", "model.hidden_size=128 must be an even number (RoPE turns pairs) times model.num_heads=3"),
    ("model.num_kv_heads=3", "model.num_heads=4 must be a multiple of model.num_kv_heads=3"),
    ("model.vocab_size=300", "model.vocab_size=300 is less than tokenizer.vocab_size=4096"),
    ("norm.fuse_residual=false", "norm.fuse_residual=false is for norm=triton"),
    ("data=text", "data=text needs data.files"),
    ("data=hub", "data=hub needs data.dataset"),
    ("data=text data.files=no_such*.txt", "data.files=no_such*.txt matches nothing in "),
    ("data.files=a.txt", "type data=text data.files="),
    (
        "trainer.precision=bf16-true optim.beta2=0.999",
        "a bf16 second moment cannot decay that slowly; use at most 0.99",
    ),
    ("trainer=cpu trainer.precision=16-mixed", "trainer.precision=16-mixed needs a GPU"),
    ("resume=/no/such/run", "/no/such/run is no run's folder"),
    ("hydra.run.dir=/dev/null/run", "/dev/null/run cannot be made, /dev/null is no folder that you may write to"),
    ("-m seed=1,2 hydra.sweep.dir=/dev/null/runs", "/dev/null/runs cannot be made"),
    ("hydra.run.dir=", "hydra.run.dir= names no folder: type hydra.run.dir=DIR, or leave it out"),
    ("-m norm=eager,foo", "norm=foo is unknown"),
    ("-m resume=last", "resume=last goes on with one run: leave -m out"),
]


@pytest.mark.parametrize(("typed", "expected"), WRONG, ids=[typed for typed, _ in WRONG])
def test_a_mistake_gives_one_sentence(typed: str, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        checked(typed.split())
    assert expected in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_all_mistakes_are_reported_together() -> None:
    typed = "norm=foo +optim.lrx=1 trainer.max_steps=abc batch.micro=0 model.vocab_size=300 seed=1.5 a.b(=1"
    with pytest.raises(UserError) as raised:
        checked(typed.split())
    lines = str(raised.value).splitlines()
    for key in ("norm=foo", "optim.lrx", "trainer.max_steps", "batch.micro", "model.vocab_size", "seed", "a.b("):
        assert sum(line.startswith(key) for line in lines) == 1, key
    assert len(lines) == 7


def test_all_that_the_machine_has_not_is_reported_together_of_all_jobs_of_a_sweep() -> None:
    typed = "-m trainer=cpu trainer.precision=16-mixed,32-true trainer.attention=auto,cudnn seed=1,2"
    with pytest.raises(UserError) as raised:
        checked([*typed.split(), "norm=custom", "norm.name=no_such_module:MyNorm"])
    lines = str(raised.value).splitlines()
    for part in ("no_such_module:MyNorm was not", "16-mixed needs a GPU", "cudnn cannot run here (", ", 32-true, head"):
        assert sum(part in line for line in lines) >= 1, part
    assert len(lines) == len(set(lines)) == 4  # attention's sentence names the precision


def config_of(*typed: str) -> Config:
    (config,) = check(read(list(typed)))
    return config


@pytest.mark.parametrize("path", ["données (1).txt", "a=b.txt", "books/*.txt", "a, b.txt", "123", " x ", "it's.txt"])
def test_file_names_need_no_quotes_of_hydras(path: str) -> None:
    assert config_of("data=text", f"data.files={path}").data.files == [path]


def test_lists_quotes_and_null_keep_hydras_meaning() -> None:
    assert config_of("data=text", "data.files=[a.txt,'b c.txt']").data.files == ["a.txt", "b c.txt"]
    assert config_of("data=text", "data.files='a b.txt'").data.files == ["a b.txt"]
    assert config_of("tokenizer.path=null").tokenizer.path is None


def test_a_value_needs_no_plus_and_may_have_one() -> None:
    for prefix in ("", "+", "++"):
        assert config_of(f"{prefix}norm=triton", f"{prefix}norm.fuse_residual=false").norm.fuse_residual is False


def test_a_sweep_is_checked_job_by_job() -> None:
    command = read(["norm=eager,triton", "seed=1,2"], multirun=True)
    assert [(c.norm.name, c.seed) for c in check(command)] == [
        ("eager", 1), ("eager", 2), ("triton", 1), ("triton", 2)
    ]  # fmt: skip


def test_a_sweep_over_layers_is_two_jobs() -> None:
    command = read(["layers=eager,triton"], multirun=True)
    assert [layer_names(config) for config in check(command)] == [
        dict.fromkeys(LAYERS, name) for name in ("eager", "triton")
    ]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("eager", "eager", "eager", "eager"), "eager"),
        (("triton", "triton", "triton", "triton"), "triton"),
        (("torch", "eager", "eager", "eager"), "norm-torch"),
        (("eager", "triton", "eager", "torch"), "rope-triton_loss-torch"),
    ],
)
def test_a_folder_is_named_for_what_is_not_eager(names: tuple[str, ...], label: str) -> None:
    assert layers_label(dict(zip(LAYERS, names, strict=True))) == label


def test_options_may_stand_anywhere() -> None:
    assert checked(["norm=eager", "-m", "seed=1,2"]) == ["-m", "norm=eager", "++seed=1,2"]


def test_help_is_given_whatever_else_is_typed() -> None:
    assert checked(["--help", "norm=foo"]) == ["--help", "norm=foo"]
