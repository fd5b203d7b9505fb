"""What the heads of a trained model look at, and what their matrices are like.

Start with `probe`; `heads` and `matrices` say what each number means and where it comes from.
"""

from mlx_attn.lab.probe.heads import HeadStatistics, head_statistics
from mlx_attn.lab.probe.maps import attention_maps, repeated_sequences
from mlx_attn.lab.probe.matrices import HeadMatrices, score_spectra, value_output_spectra
from mlx_attn.lab.probe.probe import Probe, probe
from mlx_attn.lab.probe.texts import prompt_tokens, validation_windows
from mlx_attn.lab.probe.tracks import PairDrift, Track, pair_drift, read_track

__all__ = [
    "HeadMatrices",
    "HeadStatistics",
    "PairDrift",
    "Probe",
    "Track",
    "attention_maps",
    "head_statistics",
    "pair_drift",
    "probe",
    "prompt_tokens",
    "read_track",
    "repeated_sequences",
    "score_spectra",
    "validation_windows",
    "value_output_spectra",
]
