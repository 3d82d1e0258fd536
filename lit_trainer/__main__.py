"""``python -m lit_trainer`` is ``lit-trainer``."""

from lit_trainer.cli import main

if __name__ == "__main__":
    main()
