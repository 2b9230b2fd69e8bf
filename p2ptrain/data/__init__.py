"""What the examples train on, by registered name. Importing this package imports no torch.

corpus = corpus_by_name("python_stdlib")            # bytes found on this machine, split, fingerprinted
windows = dataset_by_name("python_stdlib", context=128, samples=8, seed=0)   # needs torch
inputs_BT, targets_BT = windows.microbatch(17)       # a function of (corpus, seed, id) alone
"""

from p2ptrain.data.corpus import Corpus, CorpusAssembly, CorpusInfo
from p2ptrain.data.registry import check_dataset, corpus_by_name, dataset_by_name, dataset_names

__all__ = [
    "Corpus",
    "CorpusAssembly",
    "CorpusInfo",
    "check_dataset",
    "corpus_by_name",
    "dataset_by_name",
    "dataset_names",
]
