"""Parts of `train_tiny.py`: the corpus, the vocabulary, training, measuring, writing."""
