"""What the heads of a trained model look at, and what their matrices are like.

Start with `probe`; `heads` and `matrices` say what each number means and where it comes from.
"""

from mlx_attn.lab.probe.heads import HeadStatistics, head_statistics
from mlx_attn.lab.probe.maps import attention_maps, repeated_sequences
from mlx_attn.lab.probe.matrices import HeadMatrices, score_spectra, value_output_spectra
from mlx_attn.lab.probe.probe import Probe, probe
from mlx_attn.lab.probe.texts import prompt_tokens, validation_windows

__all__ = [
    "HeadMatrices",
    "HeadStatistics",
    "Probe",
    "attention_maps",
    "head_statistics",
    "probe",
    "prompt_tokens",
    "repeated_sequences",
    "score_spectra",
    "validation_windows",
    "value_output_spectra",
]
