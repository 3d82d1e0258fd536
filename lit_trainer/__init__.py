"""Fine-tune Hugging Face models with PyTorch Lightning: the same training run on any split of the hardware."""

__version__ = "0.1.0"
