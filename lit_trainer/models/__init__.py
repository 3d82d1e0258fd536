"""Hugging Face models as training needs them."""
