"""explain.json."""

from dataclasses import asdict
from typing import Any

from minillm.explain.count import Launch
from minillm.explain.results import Explained, Explanation, Found


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Everything. `predicted` is what compare.py can be set beside: ms of an optimizer step by `layer=name`."""
    config, prediction = explanation.plan.config, explanation.prediction()
    return {
        "command": explanation.command,
        "env": explanation.env,
        "card": asdict(explanation.card),
        "measured": explanation.measured,
        "copy_gb_per_second": explanation.roof,
        "config": config.model_dump(mode="json"),
        "layers": [layer_json(explanation, explained) for explained in explanation.layers],
        "claims": [asdict(claim) for claim in explanation.claims],
        "steps": [step.plain() for step in explanation.steps],
        "predicted": None
        if prediction is None
        else {
            "source": prediction.source,
            "measured": explanation.measured,
            "layer_ms": prediction.layer_ms,
            "saved_ms": prediction.saved_ms,
        },
    }


def layer_json(explanation: Explanation, explained: Explained) -> dict[str, Any]:
    subject = explained.subject
    return {
        "title": subject.title,
        "layer": subject.layer,
        "shape": subject.shape,
        "dtype": str(subject.dtype).removeprefix("torch."),
        "calls_a_step": subject.calls,
        "floor_bytes": subject.floor,
        "implementations": {found.name: found_json(explanation, explained, found) for found in explained.found},
    }


def found_json(explanation: Explanation, explained: Explained, found: Found) -> dict[str, Any]:
    def launch_json(launch: Launch) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": launch.name, "bytes": launch.moved}
        if launch.triton is not None:
            triton = launch.triton
            took = explanation.resources[triton.key]
            flight = explanation.card.in_flight(triton.programs, took, triton.warps)
            plain |= {"grid": triton.grid, "constants": triton.constants, **asdict(took), "in_flight": flight}
        return plain

    return {
        "note": found.note,
        "counted": {
            direction: {
                "launches": [launch_json(launch) for launch in one.launches],
                "bytes": one.moved,
                "intermediates": one.intermediates,
                "kept": one.kept,
            }
            for direction, one in found.counted.items()
        },
        "ms": {direction: asdict(summary) for direction, summary in found.ms.items()},
        "of_roof": {direction: explanation.of_roof(explained.subject, found, direction) for direction in found.ms},
        "kernels": {direction: [asdict(k) for k in kernels] for direction, kernels in found.kernels.items()},
    }
