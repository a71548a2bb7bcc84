"""Decode attention, dense and over selected tokens; one file for each way to attend."""

from topokv.attention.dense import Attend, dense_decode, prepare_dense
from topokv.attention.paths import ATTENTION_PATHS, AttentionPath, Decode, attention_path_named
from topokv.attention.tokens import check_token_ids, sparse_decode

__all__ = [
    "ATTENTION_PATHS",
    "Attend",
    "AttentionPath",
    "Decode",
    "attention_path_named",
    "check_token_ids",
    "dense_decode",
    "prepare_dense",
    "sparse_decode",
]
