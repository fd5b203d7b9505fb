"""What is equal between arms: steps, seconds or trained numbers, as changes of their settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.lab.compare.protocol import Protocol
from mlx_attn.lab.compare.tuning import Choice
from mlx_attn.model import model_cost
from mlx_attn.model.config import GPTConfig

NEAREST = 0.005
"""How far, as a share, the numbers of two arms may be apart and still count as equal."""


def equal_parameters(control: GPTConfig, arm: GPTConfig) -> dict[str, Any]:
    """The feed-forward width that gives an arm as many trained numbers as the control has.

    Raises:
        ConfigError: No width does; the message has the numbers.
    """
    wanted, has = model_cost(control).parameters, model_cost(arm).parameters
    per_width = model_cost(replace(arm, hidden_dim=arm.hidden_dim + 1)).parameters - has
    hidden = arm.hidden_dim + round((wanted - has) / per_width)
    if hidden < 1:
        raise ConfigError(
            f"it has {has - wanted:,} parameters more than the control, and its feed-forward "
            f"layers have only {arm.hidden_dim * per_width:,} to give: use fewer heads"
        )
    gap = abs(model_cost(replace(arm, hidden_dim=hidden)).parameters - wanted)
    if gap > NEAREST * wanted:
        raise ConfigError(f"the nearest width leaves a difference of {gap:,} parameters")
    return {} if hidden == arm.hidden_dim else {"hidden_dim": hidden}


def equal_seconds(steps: int, control: float, arm: float) -> dict[str, Any]:
    """The steps that an arm does in the time in which the control does `steps`.

    Args:
        steps: Of the control.
        control: Tokens per second of the control's training.
        arm: The same of the arm.
    """
    return {"steps": max(1, round(steps * arm / control))}


def changes_for(
    budget: str,
    protocol: Protocol,
    control: Choice,
    choice: Choice,
    vocab_size: int,
    speeds: Mapping[str, float],
) -> dict[str, Any]:
    """What an arm changes under a budget; nothing for the control.

    Raises:
        ConfigError: The arm cannot be had under this budget.
    """
    if choice is control or budget == "steps":
        return {}
    if budget == "seconds":
        if choice.arm.name not in speeds or control.arm.name not in speeds:
            raise ConfigError("its speed is not known: it diverged with every learning rate")
        steps = protocol.settings(control.arm).training.steps
        return equal_seconds(steps, speeds[control.arm.name], speeds[choice.arm.name])
    configs = [protocol.settings(c.arm).model_config(vocab_size) for c in (control, choice)]
    return equal_parameters(*configs)
